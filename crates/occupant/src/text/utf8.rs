//! Makes text of bytes: what is no UTF-8, and NUL, is spelt `\xNN`, and that it was is known.
//!
//! Any split of the same bytes leaves the same text.

#[derive(Debug, Clone, Default)]
pub(crate) struct Spell {
    /// The beginning of a character whose end has not come.
    held: Vec<u8>,
    pub(crate) spelt: bool,
}

impl Spell {
    pub(crate) fn push(&mut self, bytes: &[u8], out: &mut String) {
        if self.held.is_empty() {
            return self.whole(bytes, out);
        }
        // A character is at most four bytes, so that few are moved.
        let mut joined = std::mem::take(&mut self.held);
        let most = bytes.len().min(4);
        joined.extend_from_slice(&bytes[..most]);
        self.whole(&joined, out);
        if self.held.is_empty() {
            self.whole(&bytes[most..], out);
        } else {
            let held = std::mem::take(&mut self.held);
            let rest = [&held, &bytes[most..]].concat();
            self.whole(&rest, out);
        }
    }

    pub(crate) fn finish(&mut self, out: &mut String) {
        for byte in std::mem::take(&mut self.held) {
            self.escape(byte, out);
        }
    }

    fn whole(&mut self, bytes: &[u8], out: &mut String) {
        let mut rest = bytes;
        while !rest.is_empty() {
            let (valid, error) = match std::str::from_utf8(rest) {
                Ok(text) => (text, None),
                Err(error) => {
                    let valid = std::str::from_utf8(&rest[..error.valid_up_to()]).unwrap_or_default();
                    (valid, Some(error.error_len()))
                }
            };
            self.text(valid, out);
            rest = &rest[valid.len()..];
            match error {
                None => return,
                Some(None) => return self.held.extend_from_slice(rest),
                Some(Some(length)) => {
                    for byte in &rest[..length] {
                        self.escape(*byte, out);
                    }
                    rest = &rest[length..];
                }
            }
        }
    }

    fn text(&mut self, text: &str, out: &mut String) {
        let mut parts = text.split('\0');
        out.push_str(parts.next().unwrap_or_default());
        for part in parts {
            self.escape(0, out);
            out.push_str(part);
        }
    }

    fn escape(&mut self, byte: u8, out: &mut String) {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        self.spelt = true;
        out.push_str("\\x");
        out.push(char::from(DIGITS[usize::from(byte >> 4)]));
        out.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn spell(bytes: &[u8], size: usize) -> (String, bool) {
        let (mut spell, mut out) = (Spell::default(), String::new());
        bytes.chunks(size).for_each(|part| spell.push(part, &mut out));
        spell.finish(&mut out);
        (out, spell.spelt)
    }

    #[test]
    fn what_is_no_text_is_spelt() {
        assert_eq!(spell(b"plain", 9), ("plain".to_owned(), false));
        assert_eq!(spell(b"a\0b\xff\xc3(", 9), ("a\\x00b\\xff\\xc3(".to_owned(), true));
        assert_eq!(spell("é".as_bytes(), 1), ("é".to_owned(), false));
        assert_eq!(spell(b"\xf0\x9f", 1), ("\\xf0\\x9f".to_owned(), true));
    }

    proptest! {
        #[test]
        fn any_split_leaves_the_same(
            parts in proptest::collection::vec(prop_oneof![
                "\\PC{0,5}".prop_map(String::into_bytes), proptest::collection::vec(any::<u8>(), 0..5)], 0..12),
            size in 1_usize..6,
        ) {
            let whole = parts.concat();
            prop_assert_eq!(spell(&whole, size), spell(&whole, whole.len().max(1)));
        }
    }
}
