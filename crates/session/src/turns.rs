//! A session's turns: at most one runs, the others wait in order. Pure: it decides, the session task acts.
//! It knows nothing of statuses, occupants or the journal.

use protocol::{Code, ContentBlock, Disposition, Fault, OnBusy, TurnId, limits};
use std::collections::VecDeque;

/// A prompt that was accepted and has no outcome yet.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Turn {
    pub(crate) id: TurnId,
    pub(crate) client_id: Option<String>,
    pub(crate) digest: [u8; 32],
    pub(crate) accepted_seq: u64,
    pub(crate) content: Vec<ContentBlock>,
    pub(crate) model: Option<String>,
    pub(crate) limits: occupant::TurnLimits,
}

/// Where a new prompt goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Admission {
    /// Nothing runs and the occupant is ready: its turn starts now.
    Start,
    /// Behind the others.
    Back,
    /// Before the others.
    Front,
    /// Before the others, and the running turn is cancelled.
    Interrupt,
}

impl Admission {
    pub(crate) const fn disposition(self) -> Disposition {
        match self {
            Self::Start => Disposition::Started,
            Self::Back | Self::Front | Self::Interrupt => Disposition::Queued,
        }
    }
}

/// Can the occupant take a prompt at once?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Occupancy {
    Ready,
    /// Not there yet, or frozen.
    Away,
}

#[derive(Debug, Default)]
pub(crate) struct Turns {
    running: Option<Turn>,
    waiting: VecDeque<Turn>,
}

impl Turns {
    /// Decides, and changes nothing: the prompt gets its place with [`Turns::place`].
    pub(crate) fn admit(&self, on_busy: OnBusy, occupancy: Occupancy) -> Result<Admission, Fault> {
        let busy = self.running.is_some() || !self.waiting.is_empty();
        if !busy && occupancy == Occupancy::Ready {
            return Ok(Admission::Start);
        }
        if busy && on_busy == OnBusy::Reject {
            return Err(Fault::new(
                Code::Busy,
                "A turn is running; wait for its end, or send the message with onBusy set to queue, steer or interrupt",
            ));
        }
        if self.waiting.len() >= limits::QUEUED_PROMPTS {
            return Err(Fault::new(
                Code::QueueFull,
                format!(
                    "{} messages are waiting already; send it again when a turn has ended",
                    limits::QUEUED_PROMPTS
                ),
            ));
        }
        Ok(match on_busy {
            OnBusy::Queue | OnBusy::Reject => Admission::Back,
            OnBusy::Steer => Admission::Front,
            OnBusy::Interrupt if self.running.is_some() => Admission::Interrupt,
            OnBusy::Interrupt => Admission::Front,
        })
    }

    pub(crate) fn place(&mut self, turn: Turn, admission: Admission) {
        match admission {
            Admission::Back => self.waiting.push_back(turn),
            // Also one that starts now goes through the queue: there is one way into a turn.
            Admission::Start | Admission::Front | Admission::Interrupt => self.waiting.push_front(turn),
        }
    }

    /// The next turn to start, if none runs.
    pub(crate) fn start_next(&mut self) -> Option<&Turn> {
        if self.running.is_some() {
            return None;
        }
        self.running = self.waiting.pop_front();
        self.running.as_ref()
    }

    /// A turn that another server started and that is still running.
    pub(crate) fn take_up(&mut self, turn: Turn) {
        debug_assert!(self.running.is_none(), "two turns cannot run at once");
        self.running = Some(turn);
    }

    /// The running turn has its outcome. Another id is somebody's late word and changes nothing.
    pub(crate) fn finish(&mut self, id: TurnId) -> Option<Turn> {
        if self.running.as_ref().is_some_and(|turn| turn.id == id) { self.running.take() } else { None }
    }

    pub(crate) fn running(&self) -> Option<&Turn> {
        self.running.as_ref()
    }

    pub(crate) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.running.is_none() && self.waiting.is_empty()
    }

    /// Everything without an outcome, the running one first; the machine is empty afterwards.
    pub(crate) fn take_all(&mut self) -> Vec<Turn> {
        self.running.take().into_iter().chain(self.waiting.drain(..)).collect()
    }

    /// An open turn by its client's id.
    pub(crate) fn by_client_id(&self, client_id: &str) -> Option<&Turn> {
        self.running.iter().chain(&self.waiting).find(|turn| turn.client_id.as_deref() == Some(client_id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn turn() -> Turn {
        Turn {
            id: TurnId::new(),
            client_id: None,
            digest: [0; 32],
            accepted_seq: 1,
            content: vec![],
            model: None,
            limits: occupant::TurnLimits::default(),
        }
    }

    fn busy() -> Turns {
        let mut turns = Turns::default();
        turns.place(turn(), Admission::Start);
        assert!(turns.start_next().is_some());
        turns
    }

    #[test]
    fn what_a_prompt_may_do_during_a_turn() {
        let idle = Turns::default();
        for on_busy in [OnBusy::Queue, OnBusy::Steer, OnBusy::Interrupt, OnBusy::Reject] {
            assert_eq!(idle.admit(on_busy, Occupancy::Ready), Ok(Admission::Start), "{on_busy:?}");
        }
        assert_eq!(idle.admit(OnBusy::Reject, Occupancy::Away), Ok(Admission::Back), "away is not busy");
        assert_eq!(idle.admit(OnBusy::Interrupt, Occupancy::Away), Ok(Admission::Front));
        let busy = busy();
        assert_eq!(busy.admit(OnBusy::Queue, Occupancy::Ready), Ok(Admission::Back));
        assert_eq!(busy.admit(OnBusy::Steer, Occupancy::Ready), Ok(Admission::Front));
        assert_eq!(busy.admit(OnBusy::Interrupt, Occupancy::Ready), Ok(Admission::Interrupt));
        assert_eq!(busy.admit(OnBusy::Reject, Occupancy::Ready).map_err(|fault| fault.code), Err(Code::Busy));
    }

    #[test]
    fn the_queue_is_bounded() {
        let mut turns = busy();
        for _ in 0..limits::QUEUED_PROMPTS {
            let admission = turns.admit(OnBusy::Queue, Occupancy::Ready).unwrap();
            turns.place(turn(), admission);
        }
        for on_busy in [OnBusy::Queue, OnBusy::Steer, OnBusy::Interrupt] {
            assert_eq!(turns.admit(on_busy, Occupancy::Ready).map_err(|f| f.code), Err(Code::QueueFull));
        }
    }

    #[test]
    fn a_steered_prompt_runs_before_the_queue() {
        let mut turns = busy();
        let (queued, steered) = (turn(), turn());
        let running = turns.running().unwrap().id;
        turns.place(queued.clone(), Admission::Back);
        turns.place(steered.clone(), Admission::Front);
        assert!(turns.start_next().is_none(), "one at a time");
        assert!(turns.finish(queued.id).is_none(), "only the running one can finish");
        assert!(turns.finish(running).is_some());
        assert_eq!(turns.start_next().map(|turn| turn.id), Some(steered.id));
        assert!(turns.finish(steered.id).is_some());
        assert_eq!(turns.start_next().map(|turn| turn.id), Some(queued.id));
    }

    proptest! {
        /// Whatever happens, each accepted turn comes out exactly once.
        #[test]
        fn each_turn_ends_once(script in proptest::collection::vec(0u8..7, 0..200)) {
            let mut turns = Turns::default();
            let mut accepted = std::collections::HashSet::new();
            let mut ended = std::collections::HashSet::new();
            for action in script {
                match action {
                    0..=3 => {
                        let on_busy = [OnBusy::Queue, OnBusy::Steer, OnBusy::Interrupt, OnBusy::Reject][action as usize];
                        if let Ok(admission) = turns.admit(on_busy, Occupancy::Ready) {
                            let turn = turn();
                            accepted.insert(turn.id);
                            turns.place(turn, admission);
                        }
                    }
                    4 => { turns.start_next(); }
                    5 => {
                        if let Some(id) = turns.running().map(|turn| turn.id) {
                            prop_assert!(turns.finish(id).is_some());
                            prop_assert!(ended.insert(id));
                            prop_assert!(turns.finish(id).is_none());
                        }
                    }
                    _ => for turn in turns.take_all() { prop_assert!(ended.insert(turn.id)); },
                }
            }
            for turn in turns.take_all() { prop_assert!(ended.insert(turn.id)); }
            prop_assert_eq!(accepted, ended);
        }
    }
}
