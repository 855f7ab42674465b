//! A file-heavy build inside a sandbox against the same on the bare host, in interleaved pairs.
//!
//! `cargo bench -p outlast-place --bench build`

#![expect(clippy::print_stdout, reason = "a bench is read by people")]
#![expect(clippy::unwrap_used, reason = "a bench that cannot run has nothing to say")]

use outlast_place::{
    Outlook, Place, Spawn, Terms, Walls,
    keeper::{Limits, Network},
};
use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

const PAIRS: usize = 10;
const SOURCES: usize = 40;
const DATA_FILES: usize = 1500;
/// Of the host's time.
const TARGET: f64 = 1.15;
const SCRIPT: &str = "rm -rf work && mkdir work && tar xf project.tar -C work && cd work && \
    for f in src/*.c; do cc -O0 -c $f -o ${f%.c}.o || exit 1; done && cc -o program src/*.o && ./program && \
    find . -type f | wc -l && rm -rf data";

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let room = tempfile::tempdir().unwrap();
    let agent = room.path().join("agent");
    project(&agent);
    let place = Place::new(room.path(), Duration::from_secs(60));
    place.create("host", &agent, Walls::None).await.unwrap();
    place.create("sandbox", &agent, Walls::Sandbox).await.unwrap();
    let inside = Terms {
        outlook: Outlook::System,
        limits: Limits::default(),
        network: Network::None {},
        tmp_bytes: 64 << 20,
        ..Terms::host()
    };
    let (mut host, mut sandbox) = (Vec::new(), Vec::new());
    for _ in 0..PAIRS {
        host.push(build(&place, "host", Terms::host()).await);
        sandbox.push(build(&place, "sandbox", inside.clone()).await);
    }
    let (host, sandbox) = (median(host), median(sandbox));
    println!("build of {SOURCES} sources beside {DATA_FILES} files, median of {PAIRS} interleaved pairs");
    println!("  floor: on the bare host {:.1} ms", host * 1e3);
    let ratio = sandbox / host;
    let verdict = if ratio <= TARGET { "PASS" } else { "MISS" };
    println!("  {verdict} in a sandbox {:.1} ms, {ratio:.3} x, target {TARGET} x", sandbox * 1e3);
}

fn project(agent: &Path) {
    let tree = agent.with_extension("tree");
    fs::create_dir_all(tree.join("src")).unwrap();
    let calls: String = (1..SOURCES).map(|n| format!("int f{n}(int);")).collect();
    let sum: String = (1..SOURCES).map(|n| format!(" + f{n}({n})")).collect();
    fs::write(tree.join("src/main.c"), format!("{calls} int main(void) {{ return (0{sum}) < 0; }}")).unwrap();
    for n in 1..SOURCES {
        let text =
            format!("#include <stdio.h>\n#include <stdlib.h>\nint f{n}(int x) {{ return x + {n}; }}\n");
        fs::write(tree.join(format!("src/f{n}.c")), text).unwrap();
    }
    for n in 0..DATA_FILES {
        let folder = tree.join(format!("data/{}", n / 100));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(format!("file-{n}")), vec![b'x'; 1000]).unwrap();
    }
    fs::create_dir_all(agent).unwrap();
    let mut archive = tar::Builder::new(fs::File::create(agent.join("project.tar")).unwrap());
    archive.append_dir_all(".", &tree).unwrap();
    archive.finish().unwrap();
}

async fn build(place: &Place, id: &str, terms: Terms) -> f64 {
    let spawn = Spawn {
        program: "sh".to_owned(),
        args: vec!["-c".to_owned(), SCRIPT.to_owned()],
        env: [("PATH".to_owned(), "/usr/bin:/bin".to_owned())].into(),
        cwd: None,
    };
    let mut spawned = place.spawn(id, spawn, terms).await.unwrap();
    // The start of the sandbox is another figure's.
    let began = Instant::now();
    let exit = spawned.process.handle.wait().await;
    let took = began.elapsed().as_secs_f64();
    assert_eq!(exit.code, Some(0), "{:?}", spawned.process.stderr.next().await);
    spawned.hold.end().await;
    took
}

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}
