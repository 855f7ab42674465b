//! Forks: the parent's events and files up to a point, and a way of its own from there.

use crate::kit::*;
use serde_json::json;

#[tokio::test]
async fn a_fork_has_the_past_and_goes_its_own_way() {
    let (mut server, http) = server().await;
    let id = session(&http).await;
    say(&http, &id, "remember blue").await;
    say(&http, &id, "write note from the parent").await;
    let made = http.post(&format!("/api/sessions/{id}/fork"), &json!({"name": "twin"})).await.unwrap();
    let made = made.expect(201).unwrap()["session"].clone();
    let fork = made["id"].as_str().unwrap().to_owned();
    let at = made["forkedFrom"]["seq"].as_u64().unwrap();
    assert_eq!(
        (made["forkedFrom"]["session"].as_str(), made["name"].as_str()),
        (Some(id.as_str()), Some("twin"))
    );
    assert_eq!((made["status"].as_str(), made["firstSeq"].as_u64()), (Some("starting"), Some(1)));
    until(&http, &fork, |event| event["to"] == "active" && event["seq"].as_u64() > Some(at)).await;
    assert_eq!(get(&http, &fork).await["status"], "active", "by itself");

    let (past, shared) = (events(&http, &id).await, events(&http, &fork).await);
    let upto = usize::try_from(at).unwrap();
    for (mine, theirs) in past[..upto].iter().zip(&shared) {
        assert_eq!(
            (&mine["seq"], &mine["type"], &mine["at"]),
            (&theirs["seq"], &theirs["type"], &theirs["at"])
        );
    }
    assert_eq!(shared[upto]["type"], "session_created");
    // Its files and its memory came along, and nothing goes back.
    assert_eq!(text_of(&say(&http, &fork, "cat note").await).trim(), "from the parent");
    assert_eq!(text_of(&say(&http, &fork, "recall").await), "blue");
    say(&http, &fork, "write note from the fork").await;
    assert_eq!(text_of(&say(&http, &id, "cat note").await).trim(), "from the parent");
    let messages = http.get(&format!("/api/sessions/{fork}/messages")).await.unwrap().expect(200).unwrap();
    assert!(messages.to_string().contains("remember blue"), "{messages}");

    // A follower that begins at the beginning sees both parts once, also after a restart.
    server.kill9().unwrap();
    server.restart().await.unwrap();
    let seen = until_count(&http, &fork, "turn_ended", 5).await;
    assert_eq!(seen[..shared.len()], shared[..]);

    let refused = http.delete(&format!("/api/sessions/{id}?purge=true")).await.unwrap();
    refusal(&refused, 409, "conflict");
    http.delete(&format!("/api/sessions/{fork}?purge=true")).await.unwrap().expect(200).unwrap();
    http.delete(&format!("/api/sessions/{id}?purge=true")).await.unwrap().expect(200).unwrap();
    server.stop().await.unwrap();
    let data = server.data().to_str().unwrap().to_owned();
    run(PROGRAM, ["audit", "verify", "--data", &data], &[]).await.unwrap().ok().unwrap();
}

/// The agent forks its own conversation where it can; where it cannot, the copy of its home brings it back.
#[tokio::test]
async fn a_fork_at_the_end_is_the_agents_own() {
    let (_server, http) = server().await;
    for (name, flags, how) in [
        ("forks", "", "forked"),
        ("resumes", ", \"--no-fork\"", "resumed"),
        ("lies", ", \"--forgetful\", \"--no-load\"", "transcript"),
    ] {
        deploy(&http, name, &format!("command = \"outlast\"\nargs = [\"demo-agent\"{flags}]\n")).await;
        let id = session_of(&http, &json!({"agent": name})).await;
        say(&http, &id, "remember blue").await;
        let made =
            http.post(&format!("/api/sessions/{id}/fork"), &json!({})).await.unwrap().expect(201).unwrap();
        let fork = made["session"]["id"].as_str().unwrap();
        let recorded = until_count(&http, fork, "occupant_started", 2).await;
        let started = of_type(&recorded, "occupant_started");
        let (first, last) = (started[0], started[started.len() - 1]);
        assert_eq!(last["how"], how, "{name}");
        assert_eq!(first["agentSession"] == last["agentSession"], how == "resumed", "{name}: {started:?}");
        if how == "forked" {
            say(&http, fork, "remember green").await;
            assert_eq!(text_of(&say(&http, fork, "recall").await), "blue, green");
            assert_eq!(text_of(&say(&http, &id, "recall").await), "blue");
            // From here on it is its own conversation, and is resumed as that.
            act(&http, fork, "stop").await.expect(200).unwrap();
            assert_eq!(text_of(&say(&http, fork, "recall").await), "blue, green");
            let recorded = events(&http, fork).await;
            assert_eq!(of_type(&recorded, "occupant_started").last().unwrap()["how"], "resumed");
        }
    }
}

#[tokio::test]
async fn a_fork_of_an_earlier_point_says_what_its_files_are() {
    let (server, http) = server().await;
    let id = session(&http).await;
    say(&http, &id, "write note early").await;
    act(&http, &id, "pause").await.expect(200).unwrap();
    let at = get(&http, &id).await["lastSeq"].as_u64().unwrap();
    say(&http, &id, "echo later").await;
    let fork = server.cli(&["fork", &id, "--at", &at.to_string()]).await.unwrap().ok().unwrap();
    let fork = fork.trim().to_owned();
    assert_eq!(get(&http, &fork).await["forkedFrom"]["seq"], at);
    let recorded =
        until(&http, &fork, |event| event["type"] == "occupant_started" && event["seq"].as_u64() > Some(at))
            .await;
    let told: Vec<_> =
        of_type(&recorded, "notice").iter().filter_map(|notice| notice["text"].as_str()).collect();
    assert!(
        told.iter().any(|text| text.contains(&format!("forked at event {at} with the files as of"))),
        "{told:?}"
    );
    assert_eq!(text_of(&say(&http, &fork, "cat note").await).trim(), "early");
    let how: Vec<_> =
        of_type(&recorded, "occupant_started").iter().map(|event| event["how"].clone()).collect();
    assert_eq!(how.last().and_then(|how| how.as_str()), Some("transcript"), "{how:?}");
    assert!(!recorded.iter().any(|event| event.to_string().contains("echo later")));
    for bad in [0, 1_000_000] {
        let refused = http.post(&format!("/api/sessions/{id}/fork"), &json!({"at": bad})).await.unwrap();
        refusal(&refused, 400, "invalid_request");
    }
}
