//! The life of a session: which moves are possible from which status. Pure; the session task asks it before
//! it does anything, and the doors report its refusals as they are.
//!
//! ```text
//! starting ─► active ⇄ paused        resume: from starting, error and paused to active
//!     │         │  ▲      │          end:    from every status to ended
//!     ├─► error ◄──┘      │          ended:  terminal; ending it again changes nothing
//!     │      │            │
//!     └──────┴─► ended ◄──┘
//! ```

use protocol::{Code, Fault, Status};

/// What a caller or the world does to a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Move {
    /// A caller asks for a pause.
    Pause,
    /// A caller asks for a resume, or a prompt needs the occupant.
    Resume,
    /// The occupant is there and ready.
    Ready,
    /// The occupant went away by itself, or could not be made.
    Fail,
    /// The occupant was stopped on purpose: idleness, a stop, the server's own end.
    Rest,
    /// A caller ends it.
    End,
}

/// What the move means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing to do: it is so already.
    Stay,
    /// The status changes at once.
    To(Status),
    /// An occupant is needed first; the status changes when it is ready and stays when that fails.
    Bring,
}

/// Every combination, so that a new status or move has to be thought through here.
pub(crate) fn step(status: Status, wish: Move) -> Result<Step, Fault> {
    use Status::{Active, Ended, Error, Paused, Starting};
    match (status, wish) {
        (Active, Move::Pause) => Ok(Step::To(Paused)),
        (Starting | Paused | Ended | Error, Move::Pause) => {
            Err(Fault::new(Code::WrongStatus, format!("Cannot pause session with status \"{status}\"")))
        }

        (Active, Move::Resume) => Ok(Step::Stay),
        (Starting | Paused | Error, Move::Resume) => Ok(Step::Bring),
        (Ended, Move::Resume) => Err(ended()),

        (Active, Move::Ready) => Ok(Step::Stay),
        (Starting | Paused | Error, Move::Ready) => Ok(Step::To(Active)),
        (Ended, Move::Ready) => Err(ended()),

        // A failed resume leaves the status as it was.
        (Starting | Active, Move::Fail) => Ok(Step::To(Error)),
        (Paused | Error | Ended, Move::Fail) => Ok(Step::Stay),

        (Active, Move::Rest) => Ok(Step::To(Paused)),
        // There is nothing yet that could be taken up again.
        (Starting, Move::Rest) => Ok(Step::To(Error)),
        (Paused | Error | Ended, Move::Rest) => Ok(Step::Stay),

        (Starting | Active | Paused | Error, Move::End) => Ok(Step::To(Ended)),
        (Ended, Move::End) => Ok(Step::Stay),
    }
}

pub(crate) fn ended() -> Fault {
    Fault::new(Code::SessionEnded, "Session has ended — create a new session")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MOVES: [Move; 6] = [Move::Pause, Move::Resume, Move::Ready, Move::Fail, Move::Rest, Move::End];

    /// The drawing above, as edges: the model that the machine is held against.
    const EDGES: &[(Status, Status)] = &[
        (Status::Starting, Status::Active),
        (Status::Starting, Status::Error),
        (Status::Starting, Status::Ended),
        (Status::Active, Status::Paused),
        (Status::Active, Status::Error),
        (Status::Active, Status::Ended),
        (Status::Paused, Status::Active),
        (Status::Paused, Status::Ended),
        (Status::Error, Status::Active),
        (Status::Error, Status::Ended),
    ];

    #[test]
    fn refusals_say_what_the_contract_says() {
        assert_eq!(
            step(Status::Paused, Move::Pause).unwrap_err().message,
            "Cannot pause session with status \"paused\""
        );
        assert_eq!(step(Status::Ended, Move::Resume).unwrap_err().code, Code::SessionEnded);
        assert_eq!(
            step(Status::Ended, Move::Resume).unwrap_err().message,
            "Session has ended \u{2014} create a new session"
        );
    }

    #[test]
    fn every_edge_of_the_drawing_is_reachable_by_one_move() {
        for (from, to) in EDGES {
            let reached = MOVES.iter().any(|wish| match step(*from, *wish) {
                Ok(Step::To(status)) => status == *to,
                Ok(Step::Stay | Step::Bring) | Err(_) => false,
            });
            assert!(reached, "{from} -> {to}");
        }
    }

    proptest! {
        #[test]
        fn any_life_stays_on_the_drawing(moves in proptest::collection::vec(0..MOVES.len(), 0..60)) {
            let mut status = Status::Starting;
            let mut ended = false;
            for index in moves {
                let before = status;
                match step(status, MOVES[index]) {
                    Ok(Step::To(next)) => {
                        prop_assert!(EDGES.contains(&(before, next)), "{before} -> {next} by {:?}", MOVES[index]);
                        status = next;
                    }
                    Ok(Step::Bring) => prop_assert!(matches!(before, Status::Starting | Status::Paused | Status::Error)),
                    Ok(Step::Stay) | Err(_) => {}
                }
                if ended {
                    prop_assert_eq!(status, Status::Ended, "ended is terminal");
                }
                ended |= status == Status::Ended;
            }
        }
    }
}
