//! What every agent is put through, and the row of the table that comes of it.
//!
//! A step that fails fails the test once all have run, so that one run shows everything. A promise that does
//! not hold yet is written as the promise, and listed in [`NOT_YET`] with what is missing: it then shows in
//! the table as broken, loudly, and does not fail the run. One that holds although it is listed does fail it.

use crate::{Setup, drive::Talk, install, kit::*};
use std::{
    fs,
    os::unix::fs::{MetadataExt as _, chown},
    path::Path,
};
use testkit::model::Model;

/// `(step, what is missing)`.
const NOT_YET: &[(&str, &str)] = &[];

/// A variable by which the agent's processes can be told from all others.
const MARK: &str = "OUTLAST_STORY";

type Step = Result<String, String>;

pub(crate) async fn tell(agent: &str, setup: impl FnOnce(&Model) -> Setup) {
    let model = Model::start().await.unwrap();
    // The sandbox lets nothing out but to the model.
    let port = model.address().port();
    let server = testkit::Setup::new(PROGRAM).env("OUTLAST_SANDBOX_FORWARDS", port.to_string());
    let mut server = server.start().await.unwrap();
    let http = server.http().unwrap();
    let mut setup = setup(&model);
    let mark = format!("{agent}-{port}");
    setup.env.push((MARK, mark.clone()));
    let folder = install::folder(&server, agent).await;
    install::deploy(&http, &folder, agent, &setup, port).await;
    let mut talk = match Talk::begin(&http, agent).await {
        Ok(talk) => talk,
        Err(error) => return judge(agent, &[("start", Err(error))]),
    };
    let mut rows: Vec<(&str, Step)> = vec![];
    rows.push(("text", text(&mut talk).await));
    rows.push(("tool and permission", tool(&mut talk).await));
    rows.push(("cancel", cancel(&mut talk, &model).await));
    rows.push(("config", config(&mut talk, setup.change).await));
    rows.push(("suspend and resume", suspend(&mut talk).await));
    rows.push(("agent killed", crashed(&mut talk, &mark).await));
    rows.push(("server killed mid-turn", killed(&mut talk, &mut server, &model).await));
    rows.push(("resume from a wiped store", wiped(&mut talk, &server, &folder).await));
    let end = http.delete(&format!("/api/sessions/{}", talk.session)).await.unwrap();
    rows.push(("end", end.expect(200).map(|_| "ended".to_owned()).map_err(|error| format!("{error:#}"))));
    keep_journal(agent, &talk, &model).await;
    judge(agent, &rows);
}

async fn text(talk: &mut Talk) -> Step {
    let turn = talk.turn("say: hello from the model").await?;
    turn.said("hello from the model")?;
    let usage = if turn.usage.is_null() { "without usage" } else { "with usage" };
    Ok(usage.to_owned())
}

async fn tool(talk: &mut Talk) -> Step {
    let turn = talk.turn("run: touch proof && expr 40 + 2").await?;
    turn.said("42")?;
    let open = turn.tools.iter().filter(|(_, status)| status != "completed").count();
    match (turn.tools.len(), open, turn.answered) {
        (0, _, _) => Err("no tool call was seen".to_owned()),
        (_, _, 0) => Err("it did not ask".to_owned()),
        (_, 0, asked) => Ok(format!("asked {asked}×")),
        (_, open, asked) => Ok(format!("asked {asked}×, {open} calls not completed: {:?}", turn.tools)),
    }
}

async fn cancel(talk: &mut Talk, model: &Model) -> Step {
    let (id, mut stream) = talk.start("hold: these words").await?;
    model
        .until(|asked| asked.last_user().contains("hold: these words"))
        .await
        .map_err(|e| format!("{e:#}"))?;
    talk.hear(&mut stream, "these words").await?;
    act(&talk.http, &talk.session, "cancel").await.expect(200).unwrap();
    let turn = talk.finish(&id, &mut stream).await?;
    model.release();
    if (turn.outcome.as_str(), turn.reason.as_str()) != ("cancelled", "cancelled") {
        return Err(format!("{} {} {}", turn.outcome, turn.reason, turn.message));
    }
    talk.turn("say: alive after cancel").await?.said("alive after cancel")?;
    Ok("lives on".to_owned())
}

async fn config(talk: &mut Talk, (name, value): (&str, &str)) -> Step {
    let path = format!("/api/sessions/{}/config", talk.session);
    let body = serde_json::json!({name: value});
    let reply = talk.http.call("PATCH", &path, Some(&body)).await.unwrap();
    if reply.status != 200 {
        return Err(reply.text());
    }
    Ok(format!("{name} {value}"))
}

async fn suspend(talk: &mut Talk) -> Step {
    talk.turn("the word is swordfish\nsay: noted").await?.said("noted")?;
    act(&talk.http, &talk.session, "stop").await.expect(200).unwrap();
    talk.turn("recall: swordfish").await?.said("I recall swordfish")?;
    Ok(talk.how().await)
}

/// Nobody asked it to go, and nobody asks for it: it is brought back all the same, and knows what it knew.
async fn crashed(talk: &mut Talk, mark: &str) -> Step {
    let mut stream = talk.follow().await;
    if kill_marked(mark) == 0 {
        return Err("its processes were not found".to_owned());
    }
    talk.wait_for(&mut stream, "occupant_exited").await?;
    talk.wait_for(&mut stream, "occupant_started").await?;
    talk.turn("recall: swordfish").await?.said("I recall swordfish")?;
    Ok(format!("restarted, {}", talk.how().await))
}

/// Kills every process that has the mark in its environment; says how many there were.
fn kill_marked(mark: &str) -> usize {
    let wanted = format!("{MARK}={mark}");
    let numbers =
        fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let pids = numbers.filter_map(|name| name.parse::<i32>().ok()).filter(|pid| {
        let environ = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environ.split(|byte| *byte == 0).any(|entry| entry == wanted.as_bytes())
    });
    let pids: Vec<_> = pids.filter_map(rustix::process::Pid::from_raw).collect();
    pids.iter()
        .filter(|pid| rustix::process::kill_process(**pid, rustix::process::Signal::KILL).is_ok())
        .count()
}

async fn killed(talk: &mut Talk, server: &mut Server, model: &Model) -> Step {
    let (id, mut stream) = talk.start("hold: half a sentence").await?;
    talk.hear(&mut stream, "half a sentence").await?;
    server.kill9().unwrap();
    server.restart().await.unwrap();
    talk.http = server.http().unwrap();
    model.release();
    let mut stream = talk.follow().await;
    let turn = talk.finish(&id, &mut stream).await?;
    talk.turn("recall: swordfish")
        .await?
        .said("I recall swordfish")
        .map_err(|e| format!("afterwards: {e}"))?;
    match turn.outcome.as_str() {
        "done" => Ok("taken up".to_owned()),
        other => Err(format!("{other} {}, then {}", turn.reason, talk.how().await)),
    }
}

/// The agent's own store goes, as after a move to a machine that has only the agent's folder.
async fn wiped(talk: &mut Talk, server: &Server, folder: &Path) -> Step {
    act(&talk.http, &talk.session, "stop").await.expect(200).unwrap();
    let sandbox = get(&talk.http, &talk.session).await["sandboxId"].as_str().unwrap().to_owned();
    let home = find(server.data(), &sandbox).ok_or("the workspace was not found")?;
    let mut gone = vec![];
    for entry in fs::read_dir(&home).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name();
        if name != ".outlast" && entry.file_type().unwrap().is_dir() && name != "node_modules" {
            fs::remove_dir_all(entry.path()).unwrap();
            gone.push(name.to_string_lossy().into_owned());
        }
    }
    if gone.is_empty() {
        return Err("it keeps no store in its home".to_owned());
    }
    // Its settings are part of the deployed folder, and come back with it.
    for name in &gone {
        if folder.join(name).is_dir() {
            copy(&folder.join(name), &home.join(name));
        }
    }
    talk.turn("recall: swordfish").await?.said("I recall swordfish")?;
    Ok(talk.how().await)
}

/// A copy that belongs to whom the folder around it belongs to: in a sandbox that is nobody else.
fn copy(from: &Path, to: &Path) {
    let owner = fs::metadata(to.parent().unwrap()).unwrap();
    if fs::metadata(from).unwrap().is_dir() {
        fs::create_dir_all(to).unwrap();
        chown(to, Some(owner.uid()), Some(owner.gid())).unwrap();
        for entry in fs::read_dir(from).unwrap() {
            let name = entry.unwrap().file_name();
            copy(&from.join(&name), &to.join(&name));
        }
    } else {
        fs::copy(from, to).unwrap();
        chown(to, Some(owner.uid()), Some(owner.gid())).unwrap();
    }
}

fn find(folder: &Path, name: &str) -> Option<std::path::PathBuf> {
    for entry in fs::read_dir(folder).ok()?.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            if entry.file_name() == name {
                let home = entry.path().join("home");
                return Some(if home.is_dir() { home } else { entry.path() });
            }
            if let Some(found) = find(&entry.path(), name).filter(|_| entry.file_name() != "node_modules") {
                return Some(found);
            }
        }
    }
    None
}

/// What was recorded, and what the model was asked, for whoever wants to know why.
async fn keep_journal(agent: &str, talk: &Talk, model: &Model) {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("agents").join("table");
    fs::create_dir_all(&folder).unwrap();
    let all = events(&talk.http, &talk.session).await;
    let text: String = all.iter().map(|event| format!("{event}\n")).collect();
    fs::write(folder.join(format!("{agent}.jsonl")), text).unwrap();
    fs::write(
        folder.join(format!("{agent}.model.txt")),
        format!("{:#?}\n{:#?}", model.strays(), model.asked()),
    )
    .unwrap();
}

fn judge(agent: &str, rows: &[(&str, Step)]) {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("agents").join("table");
    fs::create_dir_all(&folder).unwrap();
    let mut table = String::new();
    let mut wrong = vec![];
    for (step, result) in rows {
        let missing = NOT_YET.iter().find(|(known, _)| known == step).map(|(_, missing)| *missing);
        let said = match (result, missing) {
            (Ok(how), None) => format!("yes: {how}"),
            (Err(why), Some(missing)) => format!("NOT YET ({missing}): {why}"),
            (Err(why), None) => {
                wrong.push(format!("{step}: {why}"));
                format!("NO: {why}")
            }
            (Ok(how), Some(_)) => {
                wrong.push(format!("{step} holds by now ({how}); take it off the list"));
                format!("yes: {how}")
            }
        };
        eprintln!("{agent}: {step}: {said}");
        table.push_str(&format!("{step}\t{said}\n"));
    }
    fs::write(folder.join(format!("{agent}.tsv")), table).unwrap();
    assert!(wrong.is_empty(), "{agent}: {}", wrong.join("; "));
}
