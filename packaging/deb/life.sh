# The life of the package on a Debian: runs in the root that check.sh makes, never on a machine.
set -euo pipefail
fail() { printf 'deb/life.sh: %s\n' "$*" >&2; exit 1; }
export DEBIAN_FRONTEND=noninteractive PATH=/usr/sbin:/usr/bin:/sbin:/bin
# Its name may be known here from another installation.
userdel grapevine 2> /dev/null || true

dpkg -i /packages/first.deb > /packages/log 2>&1 || { cat /packages/log; fail "not installed"; }
grep -q 'name your workers in /etc/grapevine/grapevine.toml' /packages/log || fail "no word of what to do next"
getent passwd grapevine > /dev/null || fail "no user"
[ "$(stat -c '%U:%G %a' /etc/grapevine)" = 'root:grapevine 750' ] || fail "rights of /etc/grapevine"
[ "$(stat -c '%U:%G %a' /etc/grapevine/grapevine.toml)" = 'root:grapevine 640' ] || fail "rights of the configuration"
[ -L /etc/systemd/system/multi-user.target.wants/grapevine.service ] || fail "the unit is not enabled"
grapevine --version
setpriv --reuid grapevine --regid grapevine --init-groups grapevine serve --config /etc/grapevine/grapevine.toml --check
systemd-analyze verify --man=no grapevine.service grapevine.socket 2>&1 | grep grapevine && fail "the units"
for page in grapevine grapevine-serve grapevine-ca-issue; do
  [ -s "/usr/share/man/man1/$page.1.gz" ] || fail "no page $page"
done
bash -nc '. /usr/share/bash-completion/completions/grapevine'
bash -c '. /usr/share/bash-completion/completions/grapevine; complete -p grapevine' > /dev/null || fail "no completion"

# The replica as the unit's user, until it is ready.
setpriv --reuid grapevine --regid grapevine --init-groups grapevine serve --config /etc/grapevine/grapevine.toml \
  --port 0 --admin-port 0 --prometheus-port 0 --gossip-port 0 --ready-without-workers > /packages/addresses 2> /packages/log &
replica=$!
for _ in $(seq 100); do
  data=$(sed -n 's/.*"data":"\([^"]*\)".*/\1/p' /packages/addresses)
  [ -n "$data" ] && grapevine probe "http://$data/readiness" 2> /dev/null && break
  sleep 0.1
done
grapevine probe "http://$data/readiness" || { cat /packages/log; fail "not ready"; }
kill "$replica"
wait "$replica" || fail "the replica did not end in order"

# An upgrade keeps what an administrator changed and turned off.
echo '# changed here' >> /etc/grapevine/grapevine.toml
systemctl disable grapevine.service 2> /dev/null
dpkg -i /packages/second.deb > /packages/log 2>&1 || { cat /packages/log; fail "not upgraded"; }
tail -1 /etc/grapevine/grapevine.toml | grep -q '# changed here' || fail "a change was lost"
[ ! -e /etc/systemd/system/multi-user.target.wants/grapevine.service ] || fail "turned on again"

dpkg -r grapevine > /packages/log 2>&1 || { cat /packages/log; fail "not removed"; }
[ ! -e /usr/bin/grapevine ] || fail "the program is left"
[ -e /etc/grapevine/grapevine.toml ] || fail "the configuration goes with purge alone"
dpkg -P grapevine > /packages/log 2>&1 || { cat /packages/log; fail "not purged"; }
left=$(find /etc /usr /var/lib/systemd -name '*grapevine*' -not -path '/usr/src/*' 2> /dev/null || true)
[ -z "$left" ] || fail "left behind: $left"
