//! What a command costs on another machine: `true` through `outlast mcp` over SSH and into a container, beside a shell
//! that is kept open over the same transport and two appends with fdatasync.
//!
//! Both machines are this one: a real SSH server on loopback, and a real container engine.

use crate::{
    figures::{Floor, Report, Target, millis, p50},
    shell::{Client, bare, command},
};
use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use std::{fs, path::Path, process::Command};
use testkit::{Engine, Inside, Server, Setup, sshd::Sshd};

const TRUES: usize = 500;
/// Measured in turns, because a shared machine is not equally fast at all times.
const AT_ONCE: usize = 50;
const WARM_UP: usize = 20;
const HERE: &str = "here";
const BOX: &str = "box";

pub(crate) async fn ssh(report: &mut Report, program: &Path) -> Result<()> {
    let sshd = Sshd::start()?;
    let config = sshd.client_config(HERE)?;
    let server = server(program, &format!("ssh_config = {}", json!(config))).await?;
    let mut open = command(Path::new("ssh"));
    open.arg("-F").arg(&config).args([HERE, "exec bash --noprofile --norc -s"]);
    measure(report, program, &server, "over SSH", &json!({"transport": "ssh", "host": HERE}), &mut open)
}

pub(crate) async fn docker(report: &mut Report, program: &Path) -> Result<()> {
    let engine = Engine::start()?;
    engine.run(BOX, Inside::Machine, &[])?;
    let server = server(program, &format!("engine_socket = {}", json!(engine.socket()))).await?;
    let mut open = command(Path::new("docker"));
    open.arg("-H").arg(format!("unix://{}", engine.socket().display()));
    open.args(["exec", "-i", BOX, "bash", "--noprofile", "--norc", "-s"]);
    let target = json!({"transport": "docker", "container": BOX});
    measure(report, program, &server, "in a container", &target, &mut open)
}

async fn server(program: &Path, shells: &str) -> Result<Server> {
    let mut server = Setup::new(program).prepare()?;
    let file = server.scratch().join("operator.toml");
    fs::write(&file, format!("[shells]\n{shells}\n"))?;
    server.env("OUTLAST_CONFIG", &file.to_string_lossy());
    server.restart().await?;
    Ok(server)
}

fn measure(
    report: &mut Report,
    program: &Path,
    server: &Server,
    place: &str,
    target: &Value,
    open: &mut Command,
) -> Result<()> {
    let mut client = Client::of(program, server)?;
    let shell = client.shell(target)?;
    client.trues(&shell, WARM_UP)?;
    let mut floor = Floor::on(server.data())?;
    let mut kept = bare(open)?;
    kept.trues(WARM_UP)?;
    let (mut ours, mut bash) = (vec![], vec![]);
    for _ in 0..TRUES / AT_ONCE {
        ours.extend(client.trues(&shell, AT_ONCE)?);
        bash.extend(kept.trues(AT_ONCE)?);
        for _ in 0..AT_ONCE {
            floor.sample()?;
        }
    }
    client.call("session_destroy", &json!({"session_id": shell})).context("the shell does not end")?;
    let (bash, ours) = (p50(bash), p50(ours));
    let floor = bash + 2 * floor.p50();
    report.line(&format!("shell: floor, bash kept open {place}, p50"), millis(bash), "ms", Target::None);
    report.line(
        &format!("shell: floor {place}, and two appends with fdatasync, p50"),
        millis(floor),
        "ms",
        Target::None,
    );
    report.line(
        &format!("shell: `true` {place}, p50"),
        millis(ours),
        "ms",
        Target::AtMost(2.0 * millis(floor)),
    );
    report.line(
        &format!("shell: `true` {place}, against its floor"),
        millis(ours) / millis(floor),
        "x",
        Target::AtMost(2.0),
    );
    Ok(())
}
