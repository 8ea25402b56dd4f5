# Functions that make an image FROM scratch of a binary, without a Dockerfile and without pulling anything. To be sourced;
# the caller defines `fail MESSAGE`.

# Shared libraries of a program or library: nothing for a static one.
libraries() {
  local list
  list=$(LD_LIBRARY_PATH="${2:-}" ldd "$1" 2> /dev/null) || return 0
  if grep -q 'not found' <<< "$list"; then
    fail "libraries of $1 are missing: $(awk '/not found/ {print $1}' <<< "$list" | xargs)"
  fi
  awk '$2 == "=>" {print $3} $1 ~ /^\// {print $1}' <<< "$list"
}

# Puts a file into an image's root, with its libraries in /lib and the loader where the file asks for it.
place() {  # file, path in the image, root, where to look for libraries first
  local root=$3 library needed
  needed=$(libraries "$1" "${4:-}")   # on a line of its own: in a `for` its failure would be lost
  install -D "$1" "$root$2"
  for library in $needed; do
    case $library in
      */ld-*|*/ld64*) install -D "$library" "$root$library" ;;
      *) install -D "$library" "$root/lib/$(basename "$library")" ;;
    esac
  done
}

# Makes an image of one layer from a root folder; the image that had the name before is removed.
import() {  # root, name, changes to the image's configuration
  local root=$1 name=$2 before id change=()
  shift 2
  for id in "$@"; do change+=(--change "$id"); done
  before=$(docker image inspect --format '{{.Id}}' "$name" 2> /dev/null || true)
  id=$(tar -C "$root" --owner=0 --group=0 -c . | docker import "${change[@]}" - "$name")
  if [ -n "$before" ] && [ "$before" != "$id" ]; then
    docker image rm "$before" > /dev/null 2>&1 || true  # still in use by a container
  fi
  printf 'image %s\n' "$name"
}

# The image of a replica: the program at /grapevine without its table of symbols, an eighth of it, and a user without a
# name, whom Kubernetes can tell from root.
replica_image() {  # root, name
  strip "$1/grapevine" || fail "strip is missing: apt-get install binutils"
  import "$1" "$2" 'ENV LD_LIBRARY_PATH=/lib' 'ENTRYPOINT ["/grapevine"]' 'USER 65532:65532'
}
