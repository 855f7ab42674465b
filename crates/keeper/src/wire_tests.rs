//! Frames: every message comes back as it went, and no garbage is taken for one.

use super::*;
use proptest::{collection::vec, option, prelude::*};

fn blob() -> impl Strategy<Value = Blob> {
    vec(any::<u8>(), 0..200).prop_map(Blob)
}

fn text() -> impl Strategy<Value = String> {
    "\\PC{0,40}"
}

fn one_of<T: Copy + std::fmt::Debug + 'static>(all: &'static [T]) -> impl Strategy<Value = T> {
    prop::sample::select(all)
}

fn exit() -> impl Strategy<Value = Exit> {
    (option::of(any::<i32>()), option::of(any::<i32>())).prop_map(|(code, signal)| Exit { code, signal })
}

fn spawn() -> impl Strategy<Value = Spawn> {
    let channel = (any::<u32>(), one_of(Flow::ALL)).prop_map(|(fd, flow)| Channel { fd, flow });
    (any::<u64>(), vec(blob(), 0..5), vec(blob(), 0..5), blob(), vec(channel, 0..5), option::of(any::<u64>()))
        .prop_map(|(process, argv, env, cwd, channels, open_files)| Spawn {
            process,
            argv,
            env,
            cwd,
            channels,
            open_files,
        })
}

fn left() -> impl Strategy<Value = Vec<Left>> {
    vec((any::<u32>(), blob()).prop_map(|(pid, name)| Left { pid, name }), 0..3)
}

fn ended() -> impl Strategy<Value = Ended> {
    let how = prop_oneof![
        any::<i32>().prop_map(|code| How::Returned { code }),
        exit().prop_map(|exit| How::Died { exit }),
        Just(How::NotRun {}),
    ];
    (any::<u64>(), how, option::of(blob()), any::<u64>(), any::<u64>(), any::<u64>(), left()).prop_map(
        |(command, how, cwd, stdout, stderr, milliseconds, left)| Ended {
            command,
            how,
            cwd,
            stdout,
            stderr,
            milliseconds,
            left,
        },
    )
}

fn shell() -> impl Strategy<Value = ShellState> {
    let unfit = option::of(one_of(Unfit::ALL));
    let how = (one_of(ShellPhase::ALL), one_of(Manner::ALL));
    (how, blob(), any::<u64>(), option::of(ended()), unfit, left()).prop_map(
        |((phase, manner), cwd, command, ended, unfit, running)| ShellState {
            phase,
            manner,
            cwd,
            command,
            ended,
            unfit,
            running,
        },
    )
}

fn shell_request() -> impl Strategy<Value = Request> {
    let (tag, process) = (any::<u32>(), any::<u64>());
    let parts = (one_of(CommandInput::ALL), one_of(Part::ALL), blob());
    prop_oneof![
        (tag, spawn()).prop_map(|(tag, spawn)| Request::StartShell { tag, spawn }),
        (tag, process, any::<u64>(), parts).prop_map(|(tag, process, command, (stdin, part, text))| {
            Request::RunCommand { tag, process, command, stdin, part, text }
        }),
        (tag, process, any::<i32>(), one_of(Whom::ALL)).prop_map(|(tag, process, signal, whom)| {
            Request::SignalCommand { tag, process, signal, whom }
        }),
        (tag, process).prop_map(|(tag, process)| Request::ShellState { tag, process }),
        (tag, process).prop_map(|(tag, process)| Request::SavedState { tag, process }),
        (tag, process, one_of(Manner::ALL), blob())
            .prop_map(|(tag, process, manner, state)| { Request::Remember { tag, process, manner, state } }),
    ]
}

fn shell_notice() -> impl Strategy<Value = Notice> {
    let process = any::<u64>();
    prop_oneof![
        (process, blob(), one_of(Manner::ALL)).prop_map(|(process, cwd, manner)| Notice::ShellReady {
            process,
            cwd,
            manner
        }),
        (process, one_of(Unusable::ALL))
            .prop_map(|(process, reason)| Notice::ShellUnusable { process, reason }),
        (process, ended()).prop_map(|(process, ended)| Notice::CommandEnded { process, ended }),
        (any::<u32>(), process, shell()).prop_map(|(tag, process, shell)| Notice::ShellIs {
            tag,
            process,
            shell
        }),
        (any::<u32>(), one_of(Manner::ALL), blob()).prop_map(|(tag, manner, state)| Notice::StateIs {
            tag,
            manner,
            state
        }),
    ]
}

fn state() -> impl Strategy<Value = ProcessState> {
    let life = prop_oneof![
        Just(Life::Starting {}),
        Just(Life::Running {}),
        exit().prop_map(|exit| Life::Exited { exit })
    ];
    let input = (any::<u32>(), any::<u64>(), any::<bool>()).prop_map(|(fd, taken, open)| InputState {
        fd,
        taken,
        open,
    });
    let output = (any::<u32>(), any::<u64>(), any::<u64>(), any::<bool>())
        .prop_map(|(fd, start, end, ended)| OutputState { fd, start, end, ended });
    (any::<u64>(), any::<u32>(), life, any::<bool>(), vec(input, 0..4), vec(output, 0..4)).prop_map(
        |(process, pid, life, frozen, inputs, outputs)| ProcessState {
            process,
            pid,
            life,
            frozen,
            inputs,
            outputs,
        },
    )
}

fn isolation() -> impl Strategy<Value = Isolation> {
    (
        one_of(Mode::ALL),
        one_of(Tree::ALL),
        vec(one_of(Limit::ALL), 0..4),
        vec(text(), 0..4),
        any::<u32>(),
        option::of(any::<u32>()),
        option::of(any::<u16>()),
    )
        .prop_map(|(mode, tree, limits, missing, pid, init, proxy)| Isolation {
            mode,
            tree,
            limits,
            missing,
            pid,
            init,
            proxy,
        })
}

fn request() -> impl Strategy<Value = Request> {
    let (tag, process, fd) = (any::<u32>(), any::<u64>(), any::<u32>());
    prop_oneof![
        (any::<u16>(), any::<Token>()).prop_map(|(version, token)| Request::Hello { version, token }),
        (tag, spawn()).prop_map(|(tag, spawn)| Request::Spawn { tag, spawn }),
        (process, fd, any::<u64>(), one_of(Part::ALL), blob()).prop_map(
            |(process, fd, number, part, bytes)| { Request::Input { process, fd, number, part, bytes } }
        ),
        (process, fd).prop_map(|(process, fd)| Request::CloseInput { process, fd }),
        (tag, process, any::<i32>(), one_of(Reach::ALL))
            .prop_map(|(tag, process, signal, reach)| Request::Signal { tag, process, signal, reach }),
        (tag, process, fd, any::<u64>(), any::<u64>())
            .prop_map(|(tag, process, fd, from, upto)| Request::Subscribe { tag, process, fd, from, upto }),
        (process, fd, any::<u64>()).prop_map(|(process, fd, upto)| Request::Want { process, fd, upto }),
        (process, fd, any::<u64>()).prop_map(|(process, fd, upto)| Request::Ack { process, fd, upto }),
        (tag, option::of(process)).prop_map(|(tag, process)| Request::Freeze { tag, process }),
        (tag, option::of(process)).prop_map(|(tag, process)| Request::Thaw { tag, process }),
        (tag, process).prop_map(|(tag, process)| Request::Kill { tag, process }),
        tag.prop_map(|tag| Request::List { tag }),
        (tag, process).prop_map(|(tag, process)| Request::Forget { tag, process }),
        tag.prop_map(|tag| Request::Shutdown { tag }),
        (tag, any::<u32>()).prop_map(|(tag, seconds)| Request::SetOrphanTimeout { tag, seconds }),
    ]
}

fn notice() -> impl Strategy<Value = Notice> {
    let (tag, process, fd) = (any::<u32>(), any::<u64>(), any::<u32>());
    prop_oneof![
        (any::<u16>(), any::<u64>(), isolation(), vec(state(), 0..4)).prop_map(
            |(version, epoch, isolation, processes)| Notice::Welcome { version, epoch, isolation, processes }
        ),
        tag.prop_map(|tag| Notice::Done { tag }),
        (tag, one_of(Refusal::ALL), text()).prop_map(|(tag, reason, text)| Notice::Refused {
            tag,
            reason,
            text
        }),
        (tag, process, any::<u32>()).prop_map(|(tag, process, pid)| Notice::Spawned { tag, process, pid }),
        (tag, process, one_of(SpawnFailure::ALL), any::<i32>()).prop_map(|(tag, process, failure, errno)| {
            Notice::SpawnFailed { tag, process, failure, errno }
        }),
        (process, fd, any::<u64>(), blob()).prop_map(|(process, fd, offset, bytes)| Notice::Output {
            process,
            fd,
            offset,
            bytes
        }),
        (process, fd, any::<u64>()).prop_map(|(process, fd, offset)| Notice::End { process, fd, offset }),
        (process, exit()).prop_map(|(process, exit)| Notice::Exited { process, exit }),
        (process, fd, any::<u64>()).prop_map(|(process, fd, number)| Notice::InputTaken {
            process,
            fd,
            number
        }),
        (process, fd, any::<u64>(), one_of(InputRefusal::ALL)).prop_map(|(process, fd, number, reason)| {
            Notice::InputRefused { process, fd, number, reason }
        }),
        (text(), any::<u16>(), one_of(EgressRefusal::ALL))
            .prop_map(|(host, port, reason)| Notice::EgressRefused { host, port, reason }),
        any::<u64>().prop_map(|count| Notice::EgressUntold { count }),
        (tag, vec(state(), 0..4)).prop_map(|(tag, processes)| Notice::Processes { tag, processes }),
        Just(Notice::Replaced {}),
        Just(Notice::ShuttingDown {}),
    ]
}

/// Both ways through a frame, whole and cut anywhere.
fn check<T: Field + PartialEq + std::fmt::Debug>(message: &T, cut: usize) -> Result<(), TestCaseError> {
    let mut bytes = vec![99];
    frame(message, &mut bytes).unwrap();
    let bytes = &bytes[1..];
    let (body, length) = split(bytes, FRAME_BYTES).unwrap().unwrap();
    prop_assert_eq!(length, bytes.len());
    prop_assert_eq!(&read::<T>(body).unwrap(), message);
    let cut = cut % bytes.len();
    prop_assert!(split(&bytes[..cut], FRAME_BYTES).unwrap().is_none());
    prop_assert!(cut >= body.len() || read::<T>(&body[..cut]).is_err(), "a part is not the whole");
    let longer = [body, &[0]].concat();
    prop_assert!(read::<T>(&longer).is_err(), "nothing may follow");
    Ok(())
}

proptest! {
    #[test]
    fn requests_survive(message in prop_oneof![3 => request(), 1 => shell_request()], cut in any::<usize>()) {
        check(&message, cut)?;
    }

    #[test]
    fn notices_survive(message in prop_oneof![3 => notice(), 1 => shell_notice()], cut in any::<usize>()) {
        check(&message, cut)?;
    }

    #[test]
    fn garbage_is_refused_or_means_itself(bytes in vec(any::<u8>(), 0..300)) {
        let _ = split(&bytes, FRAME_BYTES);
        // What can be read at all is written again as it was: there is one encoding of everything.
        if let Ok(request) = read::<Request>(&bytes) {
            let mut again = Vec::new();
            request.put(&mut again);
            prop_assert_eq!(&again, &bytes);
        }
        if let Ok(notice) = read::<Notice>(&bytes) {
            let mut again = Vec::new();
            notice.put(&mut again);
            prop_assert_eq!(&again, &bytes);
        }
    }

    #[test]
    fn a_flipped_byte_never_panics(message in request(), at in any::<usize>(), flip in 1_u8..) {
        let mut bytes = Vec::new();
        message.put(&mut bytes);
        let at = at % bytes.len();
        bytes[at] ^= flip;
        let _ = read::<Request>(&bytes);
    }
}

#[test]
fn lengths_are_bounded_before_anything_is_held() {
    assert!(split(&[0, 0, 0, 255], FRAME_BYTES).is_err());
    assert!(split(&[65, 0, 0, 0], HELLO_BYTES).is_err());
    assert!(split(&[1, 2, 3], HELLO_BYTES).unwrap().is_none());
    // A list that claims four thousand million items in a frame of a few bytes.
    assert!(read::<Notice>(&[13, 1, 0, 0, 0, 255, 255, 255, 255, 0]).is_err());
    let large = Blob(vec![0; FRAME_BYTES]);
    let mut out = vec![1, 2, 3];
    let input = Request::Input { process: 1, fd: 0, number: 1, part: Part::Last, bytes: large };
    assert_eq!(frame(&input, &mut out), Err(TooLong));
    assert_eq!(out, [1, 2, 3], "whole or not at all");
}

#[test]
fn a_hello_fits_a_guest_and_never_changes() {
    let mut bytes = Vec::new();
    frame(&Request::Hello { version: 1, token: [9; 32] }, &mut bytes).unwrap();
    let mut expected = vec![35, 0, 0, 0, 1, 1, 0];
    expected.extend([9; 32]);
    assert_eq!(bytes, expected);
    assert!(bytes.len() - 4 <= HELLO_BYTES);
}

#[test]
fn output_frames_made_in_place_are_the_same() {
    let mut direct = vec![1];
    let start = open_output(7, 2, 99, &mut direct);
    direct.extend_from_slice(b"bytes");
    seal_output(start, &mut direct);
    let mut plain = vec![1];
    let notice = Notice::Output { process: 7, fd: 2, offset: 99, bytes: Blob(b"bytes".to_vec()) };
    frame(&notice, &mut plain).unwrap();
    assert_eq!(direct, plain);
}

#[test]
fn the_streams_of_commands_close_to_each_other_are_told_apart() {
    let mut seen = std::collections::HashSet::new();
    for command in 8190..8200 {
        for fd in 0..3 {
            let number = command_stream(command, fd);
            assert!(seen.insert(number));
            assert!(number >= FIRST_STREAM && number % 4 == fd);
        }
    }
}
