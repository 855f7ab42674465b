//! A server that is gone in the middle of a command, and another that takes it up.

use crate::driver::{Driver, Ground, TIMEOUT_MS};
use outlast_occupant::shell::{self, Stdin};
use place::keeper::ShellPhase;

#[tokio::test]
async fn a_running_commands_result_arrives_whole() {
    let mut ground = Ground::new("restart").await;
    let mut driver = ground.shell().await;
    driver.run("x=kept").await;
    let text = "echo first; seq 1 50000; while [ ! -e go ]; do sleep 0.01; done; seq 50001 100000; echo $x; (exit 9)";
    let command = driver.begin(text, TIMEOUT_MS, Stdin::Empty).await;
    while driver.recorded[0].is_empty() {
        driver.step().await;
    }
    let saved =
        serde_json::to_string(&driver.machine.save(|_| Default::default(), |_| true, |_| None, driver.now()))
            .unwrap();
    let (recorded, home, process, secrets) =
        (driver.recorded.clone(), driver.home.clone(), driver.process, driver.secrets.clone());
    // The server is gone, and the command goes on.
    drop(driver);
    let old = ground.keeper.clone();
    ground.keeper = ground.keepers.take_up(&ground.name).await.unwrap();
    old.gone().await;
    drop(old);
    std::fs::write(home.join("go"), "").unwrap();

    let (keeper_shell, state) = ground.keeper.attach_shell(process).await.unwrap();
    assert!(matches!(state.phase, ShellPhase::Busy | ShellPhase::Idle), "{state:?}");
    let mut effects = Vec::new();
    let start = protocol::Timestamp::from_millis(0);
    let saved = serde_json::from_str(&saved).unwrap();
    let machine = shell::Shell::take_up(secrets.clone(), saved, start, &mut effects);
    let mut driver = Driver::joined(ground.keeper.clone(), keeper_shell, machine, home, secrets, process);
    driver.take_up(recorded, state, effects).await;
    let end = driver.end(command).await;
    assert_eq!(end.exit_code, Some(9));
    let expected: String = (1..=100_000).map(|number| format!("{number}\n")).collect();
    let expected = format!("first\n{expected}kept\n");
    assert!(
        driver.recorded[0] == expected.as_bytes(),
        "every byte once: {} of {}",
        driver.recorded[0].len(),
        expected.len()
    );
    assert_eq!(end.stdout.shown.lines_total, 100_002);
    assert_eq!(driver.run("echo $x $?").await.stdout.shown.text, "kept 9");
    ground.end().await;
}
