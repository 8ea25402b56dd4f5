//! The programs that inject faults into containers: `docker`, `docker-compose` (or the plugin), `nsenter`,
//! `iptables`.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::{Output, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use serde::Deserialize;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use tokio::time::timeout;

use super::links::{CHAIN, restore_input};

/// Limit of one command. `docker stop` waits until a replica has settled and drained.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(120);

/// Which testbed. An absent field has the default of docker-compose.
#[derive(Debug, Clone, Default)]
pub(crate) struct Testbed {
    /// `docker-compose.yml`; absent: that of the working directory.
    pub(crate) file: Option<PathBuf>,
    /// Name of the project; absent: that of the file's folder.
    pub(crate) project: Option<String>,
    /// Variables of the file, such as `testbed/docker/free-ports.env`; the same that `up` was given.
    pub(crate) env_file: Option<PathBuf>,
}

/// A compose project. `docker-compose` takes seconds, so it runs only for what `docker` cannot do.
pub(super) struct Docker {
    /// Program and first arguments.
    compose: Vec<String>,
    /// Name of the project, which is a label of each container.
    project: String,
}

/// A container, as `docker inspect` describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Container {
    pub(super) id: String,
    pub(super) service: String,
    pub(super) state: ContainerState,
    /// Process id on this machine, while it runs.
    pub(super) pid: Option<u32>,
    /// Address in its network; while it runs and is connected.
    pub(super) address: Option<Ipv4Addr>,
    /// Networks that it is connected to.
    pub(super) networks: Vec<String>,
    /// A CPU quota is set.
    pub(super) is_starved: bool,
    /// `LD_PRELOAD` names libfaketime.
    pub(super) has_faketime: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ContainerState {
    Running,
    Paused,
    Stopped,
}

impl Docker {
    /// The project in which this service runs; `None` when it does not run.
    pub(super) async fn of(testbed: &Testbed, service: &str) -> anyhow::Result<Option<Self>> {
        let compose = compose_command(testbed).await?;
        let id = compose_run(&compose, &["ps", "-q", service]).await?;
        let Some(id) = id.split_whitespace().next() else {
            return Ok(None);
        };
        let label = "{{index .Config.Labels \"com.docker.compose.project\"}}";
        let project = docker(&["inspect", "--format", label, id]).await?;
        let project = project.trim().to_owned();
        Ok(Some(Self { compose, project }))
    }

    /// All containers of the project, stopped ones too.
    pub(super) async fn containers(&self) -> anyhow::Result<Vec<Container>> {
        let label = format!("label=com.docker.compose.project={}", self.project);
        let ids = docker(&["ps", "-a", "-q", "--no-trunc", "--filter", &label]).await?;
        if ids.trim().is_empty() {
            return Ok(Vec::new());
        }
        let arguments = ["inspect"].into_iter().chain(ids.split_whitespace());
        let text = docker(&arguments.collect::<Vec<_>>()).await?;
        let inspected: Vec<Inspected> =
            serde_json::from_str(&text).context("reply of docker inspect")?;
        Ok(inspected.into_iter().map(Container::from).collect())
    }

    /// Creates and starts the container of a service; an existing container is left as it is.
    pub(super) async fn up(&self, service: &str) -> anyhow::Result<()> {
        let arguments = ["up", "-d", "--no-deps", "--no-recreate", service];
        compose_run(&self.compose, &arguments).await.map(drop)
    }
}

/// The compose plugin if it is installed, else docker-compose; with the testbed's arguments.
async fn compose_command(testbed: &Testbed) -> anyhow::Result<Vec<String>> {
    let plugin = run("docker", &["compose", "version"], "").await;
    let mut command: Vec<String> = if plugin.is_ok() {
        vec!["docker".into(), "compose".into()]
    } else {
        vec!["docker-compose".into()]
    };
    let path = |path: &PathBuf| path.display().to_string();
    for (flag, value) in [
        ("-f", testbed.file.as_ref().map(path)),
        ("-p", testbed.project.clone()),
        ("--env-file", testbed.env_file.as_ref().map(path)),
    ] {
        command.extend(value.into_iter().flat_map(|value| [flag.to_owned(), value]));
    }
    Ok(command)
}

async fn compose_run(command: &[String], arguments: &[&str]) -> anyhow::Result<String> {
    let (program, first) = command.split_first().expect("it begins with a program");
    let first = first.iter().map(String::as_str);
    let all: Vec<&str> = first.chain(arguments.iter().copied()).collect();
    run(program, &all, "").await
}

/// Runs `docker`.
pub(super) async fn docker(arguments: &[&str]) -> anyhow::Result<String> {
    run("docker", arguments, "").await
}

/// The log of a container since a time (RFC 3339), stdout and stderr.
pub(super) async fn logs(id: &str, since: &str) -> anyhow::Result<String> {
    let output = output("docker", &["logs", "--since", since, id], "").await?;
    let text = [output.stdout, output.stderr].concat();
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Replaces our rules in the network namespace of a process; without rules it removes the chain.
///
/// The host's `iptables` runs in the container's namespace: images need none, and the host's rules are not touched.
pub(super) async fn filter(pid: u32, rules: &[String]) -> anyhow::Result<()> {
    let script = if rules.is_empty() {
        format!(
            "iptables -w -D INPUT -j {CHAIN} 2>/dev/null; iptables -w -F {CHAIN} 2>/dev/null; \
             iptables -w -X {CHAIN} 2>/dev/null; ! iptables -w -L {CHAIN} -n >/dev/null 2>&1"
        )
    } else {
        format!(
            "iptables-restore -w --noflush && {{ iptables -w -C INPUT -j {CHAIN} 2>/dev/null || \
             iptables -w -I INPUT -j {CHAIN}; }}"
        )
    };
    let pid = pid.to_string();
    let arguments = ["-t", &pid, "-n", "sh", "-c", &script];
    let ran = run("nsenter", &arguments, &restore_input(rules)).await;
    ran.map(drop).context(
        "cannot change the packet filter of a container: this needs root, nsenter (package util-linux) and iptables",
    )
}

/// Runs a program with this input and returns what it printed.
async fn run(program: &str, arguments: &[&str], input: &str) -> anyhow::Result<String> {
    let output = output(program, arguments, input).await?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs a program with this input. If it fails, the error holds what it printed.
async fn output(program: &str, arguments: &[&str], input: &str) -> anyhow::Result<Output> {
    let said = || format!("`{program} {}`", arguments.join(" "));
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // Ctrl-C must reach this process alone, which then repairs every fault.
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("cannot run {program}; is it installed?"))?;
    let mut stdin = child.stdin.take().context("stdin is piped")?;
    let exchange = async {
        // A program that reads no input may have ended before.
        let _ = stdin.write_all(input.as_bytes()).await;
        drop(stdin);
        child.wait_with_output().await
    };
    let output = timeout(COMMAND_TIMEOUT, exchange).await;
    let output = output.with_context(|| format!("{} does not end", said()))??;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        bail!("{}: {}: {}", said(), output.status, errors.trim());
    }
    Ok(output)
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Inspected {
    id: String,
    state: InspectedState,
    config: InspectedConfig,
    host_config: HostConfig,
    network_settings: NetworkSettings,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct InspectedState {
    running: bool,
    paused: bool,
    pid: u32,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct InspectedConfig {
    labels: BTreeMap<String, String>,
    env: Option<Vec<String>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct HostConfig {
    cpu_quota: i64,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct NetworkSettings {
    networks: BTreeMap<String, Network>,
}

#[derive(Deserialize)]
struct Network {
    #[serde(rename = "IPAddress")]
    address: String,
}

impl From<Inspected> for Container {
    fn from(inspected: Inspected) -> Self {
        // A container that docker is about to restart counts as running and has no process.
        let runs = inspected.state.running && inspected.state.pid > 0;
        let state = match (runs, inspected.state.paused) {
            (true, true) => ContainerState::Paused,
            (true, false) => ContainerState::Running,
            (false, _) => ContainerState::Stopped,
        };
        let networks = inspected.network_settings.networks;
        let label = "com.docker.compose.service";
        let environment = inspected.config.env.unwrap_or_default();
        let preloads = |variable: &String| {
            variable.starts_with("LD_PRELOAD=") && variable.contains("faketime")
        };
        Self {
            service: inspected
                .config
                .labels
                .get(label)
                .cloned()
                .unwrap_or_default(),
            pid: Some(inspected.state.pid).filter(|_| runs),
            address: networks
                .values()
                .find_map(|network| network.address.parse().ok())
                .filter(|_| runs),
            networks: networks.into_keys().collect(),
            is_starved: inspected.host_config.cpu_quota > 0,
            has_faketime: environment.iter().any(preloads),
            id: inspected.id,
            state,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The fields that are read, as in a real answer of Docker Engine.
    fn inspected(running: bool, paused: bool, pid: u32, networks: &str) -> Container {
        let text = format!(
            r#"{{"Id":"abc","State":{{"Status":"x","Running":{running},"Paused":{paused},"Pid":{pid}}},
            "Config":{{"Labels":{{"com.docker.compose.service":"router-2"}},"Env":["LD_PRELOAD=/lib/libfaketime.so.1"]}},
            "HostConfig":{{"CpuQuota":-1}},"NetworkSettings":{{"Networks":{networks}}}}}"#
        );
        let inspected: Inspected = serde_json::from_str(&text).expect("a reply");
        Container::from(inspected)
    }

    #[test]
    fn a_container_is_what_inspect_says() {
        let runs = inspected(
            true,
            false,
            7,
            r#"{"a_grapevine":{"IPAddress":"172.18.0.3"}}"#,
        );
        let expected = Container {
            id: "abc".into(),
            service: "router-2".into(),
            state: ContainerState::Running,
            pid: Some(7),
            address: Some(Ipv4Addr::new(172, 18, 0, 3)),
            networks: vec!["a_grapevine".into()],
            is_starved: false,
            has_faketime: true,
        };
        assert_eq!(runs, expected);
    }

    #[test]
    fn a_stopped_container_has_no_address_and_a_disconnected_one_neither() {
        let stopped = inspected(false, false, 0, r#"{"a_grapevine":{"IPAddress":""}}"#);
        assert_eq!(
            (stopped.state, stopped.pid, stopped.address),
            (ContainerState::Stopped, None, None)
        );
        let cut_off = inspected(true, true, 7, "{}");
        assert_eq!(
            (cut_off.state, cut_off.pid, cut_off.address),
            (ContainerState::Paused, Some(7), None)
        );
    }
}
