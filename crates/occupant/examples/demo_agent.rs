//! The scripted agent as a program of its own, for this room's tests: the binary that holds it is built above.

#[path = "../../outlast/src/demo_agent/mod.rs"]
mod demo_agent;

fn main() -> std::process::ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    demo_agent::run(&args)
}
