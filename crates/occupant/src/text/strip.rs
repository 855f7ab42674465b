//! Takes the terminal's own language out of a stream: control sequences, control strings, character sets.
//!
//! Any split of the same bytes leaves the same bytes. A control string ends where it says so, at a cancel, or at the
//! end of its line: an unterminated one costs its line and nothing more. Text, CR, NUL and broken UTF-8 pass
//! untouched.

const ESC: u8 = 0x1b;
const BEL: u8 = 0x07;
const CAN: u8 = 0x18;
const SUB: u8 = 0x1a;
/// Shifts between character sets.
const SHIFTS: [u8; 2] = [0x0e, 0x0f];
/// The first byte of a C1 control in UTF-8.
const C1_LEAD: u8 = 0xc2;

/// ```text
/// Text ─ESC─► Escape ─[─► Sequence ─final─► Text
///   │            ├─ ] P _ ^ X ─► String ─BEL, ST, line's end─► Text
///   │            └─ charset ─► Designation ─► Text
///   └─ lead byte ─► Inside (the rest of one character)
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum State {
    #[default]
    Text,
    Escape,
    /// After ESC and intermediate bytes.
    Designation,
    Sequence,
    String,
    /// A string, and in it an ESC that may begin its end.
    StringEscape,
    /// A string, and in it the lead byte of a C1 control that may be its end.
    StringLead,
    /// 0xC2 in the text: a C1 control, or the beginning of a character.
    Lead,
    /// So many bytes of a character to come.
    Inside(u8),
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Strip {
    state: State,
}

impl Strip {
    pub(crate) fn push(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        let mut at = 0;
        while at < bytes.len() {
            if self.state == State::Text {
                let plain = bytes[at..].iter().position(|byte| !PLAIN[usize::from(*byte)]);
                let end = plain.map_or(bytes.len(), |length| at + length);
                out.extend_from_slice(&bytes[at..end]);
                at = end;
                if at == bytes.len() {
                    return;
                }
            }
            // A byte that ends a state without belonging to it is looked at again as text.
            if self.step(bytes[at], out) == Used::Yes {
                at += 1;
            }
        }
    }

    /// The stream ended. Only a character cut short can still be there.
    pub(crate) fn finish(&mut self, out: &mut Vec<u8>) {
        if self.state == State::Lead {
            out.push(C1_LEAD);
        }
        self.state = State::Text;
    }

    fn step(&mut self, byte: u8, out: &mut Vec<u8>) -> Used {
        match self.state {
            State::Text => {
                self.state = match byte {
                    ESC => State::Escape,
                    C1_LEAD => State::Lead,
                    0x80..=0x9f => match c1(byte) {
                        // A lone byte that begins nothing is broken UTF-8, for others to show.
                        State::Text => {
                            out.push(byte);
                            State::Text
                        }
                        state => state,
                    },
                    _ if SHIFTS.contains(&byte) => State::Text,
                    _ => {
                        out.push(byte);
                        State::Inside(following(byte))
                    }
                };
                if self.state == State::Inside(0) {
                    self.state = State::Text;
                }
            }
            State::Inside(left) => {
                self.state = State::Text;
                if !(0x80..=0xbf).contains(&byte) {
                    return Used::No;
                }
                out.push(byte);
                if left > 1 {
                    self.state = State::Inside(left - 1);
                }
            }
            State::Lead => match byte {
                0x80..=0x9f => self.state = c1(byte),
                _ => {
                    out.push(C1_LEAD);
                    self.state = State::Text;
                    if !(0xa0..=0xbf).contains(&byte) {
                        return Used::No;
                    }
                    out.push(byte);
                }
            },
            State::Escape => match byte {
                b'[' => self.state = State::Sequence,
                b']' | b'P' | b'_' | b'^' | b'X' => self.state = State::String,
                0x20..=0x2f => self.state = State::Designation,
                0x30..=0x7e => self.state = State::Text,
                ESC => {}
                _ => return self.again(),
            },
            State::Designation => match byte {
                0x20..=0x2f => {}
                0x30..=0x7e => self.state = State::Text,
                _ => return self.again(),
            },
            State::Sequence => match byte {
                0x20..=0x3f => {}
                0x40..=0x7e | CAN | SUB => self.state = State::Text,
                _ => return self.again(),
            },
            State::String => match byte {
                BEL | CAN | SUB | 0x9c => self.state = State::Text,
                ESC => self.state = State::StringEscape,
                C1_LEAD => self.state = State::StringLead,
                b'\n' => return self.again(),
                _ => {}
            },
            State::StringEscape => {
                self.state = State::Escape;
                if byte != b'\\' {
                    return Used::No;
                }
                self.state = State::Text;
            }
            State::StringLead => {
                self.state = if byte == 0x9c { State::Text } else { State::String };
                if byte != 0x9c {
                    return Used::No;
                }
            }
        }
        Used::Yes
    }

    fn again(&mut self) -> Used {
        self.state = State::Text;
        Used::No
    }
}

#[derive(PartialEq, Eq)]
enum Used {
    Yes,
    No,
}

/// What a C1 control begins; those that begin nothing are simply gone.
fn c1(byte: u8) -> State {
    match byte {
        0x90 | 0x98 | 0x9d | 0x9e | 0x9f => State::String,
        0x9b => State::Sequence,
        _ => State::Text,
    }
}

/// How many bytes follow a lead byte.
const fn following(lead: u8) -> u8 {
    match lead {
        0xc3..=0xdf => 1,
        0xe0..=0xef => 2,
        0xf0..=0xf4 => 3,
        _ => 0,
    }
}

/// Bytes that change nothing in the text.
static PLAIN: [bool; 256] = {
    let mut plain = [false; 256];
    let mut byte = 0;
    while byte < 0x80 {
        plain[byte] = byte != ESC as usize && byte != SHIFTS[0] as usize && byte != SHIFTS[1] as usize;
        byte += 1;
    }
    plain
};

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn strip(bytes: &[u8]) -> Vec<u8> {
        let (mut strip, mut out) = (Strip::default(), Vec::new());
        strip.push(bytes, &mut out);
        strip.finish(&mut out);
        out
    }

    #[test]
    fn every_kind_goes_and_text_stays() {
        let cases: &[(&str, &str)] = &[
            ("plain\r\n\ttext\0", "plain\r\n\ttext\0"),
            ("\x1b[31mred\x1b[0m", "red"),
            ("\x1b[38;2;1;2;3mx\x1b[?25l\x1b[2J\x1b[1;1H", "x"),
            ("\x1b]0;title\x07after", "after"),
            ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
            ("a\x1b]0;never ends\nnext", "a\nnext"),
            ("\x1bPq#0;1\x1b\\dcs", "dcs"),
            ("\x1b_Gf=32;AAAA\x1b\\apc\x1b^pm\x1b\\\x1bXsos\x1b\\!", "apc!"),
            ("\x1b(B\x1b)0line\x0e\x0f", "line"),
            ("\u{9b}31mc1\u{9d}0;t\u{9c}!\u{85}", "c1!"),
            ("\x1b7saved\x1b8\x1bM\x1b=", "saved"),
            ("é日本🎉\u{a0}", "é日本🎉\u{a0}"),
            ("cut \x1b[31", "cut "),
            ("cut \x1b]0;x", "cut "),
            ("\x1b[31\x1b[32mgreen", "green"),
            ("\x1b\x1b[1mx", "x"),
            ("\x1b[1\nm", "\nm"),
        ];
        for (given, expected) in cases {
            assert_eq!(String::from_utf8(strip(given.as_bytes())).unwrap(), *expected, "{given:?}");
        }
        assert_eq!(strip(b"\x9b31mraw"), b"raw");
        assert_eq!(strip(b"\xff\xfe\x80 \xc3("), b"\xff\xfe\x80 \xc3(");
        assert_eq!(strip(b"end \xc2"), b"end \xc2");
    }

    fn piece() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![
            "[a-z é\n]{0,8}".prop_map(String::into_bytes),
            proptest::collection::vec(any::<u8>(), 0..6),
            proptest::sample::select(vec![
                b"\x1b[31m".to_vec(),
                b"\x1b]0;t\x07".to_vec(),
                b"\x1bP".to_vec(),
                b"\x1b\\".to_vec(),
                "\u{9b}1m".into(),
                "\u{9c}".into(),
                b"\x1b(".to_vec(),
                b"\xc2".to_vec(),
                b"\x9d".to_vec(),
            ]),
        ]
    }

    proptest! {
        #[test]
        fn any_split_leaves_the_same(pieces in proptest::collection::vec(piece(), 0..20), size in 1_usize..7) {
            let whole = pieces.concat();
            let (mut strip_parts, mut out) = (Strip::default(), Vec::new());
            for part in whole.chunks(size) {
                strip_parts.push(part, &mut out);
            }
            strip_parts.finish(&mut out);
            prop_assert_eq!(&out, &strip(&whole));
            prop_assert!(!out.contains(&ESC));
        }

        #[test]
        fn text_is_untouched(text in "[^\u{0}-\u{8}\u{b}-\u{1f}\u{7f}-\u{9f}]*") {
            prop_assert_eq!(strip(text.as_bytes()), text.as_bytes());
        }
    }
}
