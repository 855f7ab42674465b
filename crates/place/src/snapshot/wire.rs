//! Numbers and byte strings in an index: little-endian base-128 numbers, zigzag where a sign is needed.
//! A reader never trusts a length: what is short, overlong or left over is a fault, not a guess.

/// The bytes are not what was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Malformed;

pub(crate) fn put_number(into: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        into.push(number as u8 | 0x80);
        number >>= 7;
    }
    into.push(number as u8);
}

pub(crate) fn put_signed(into: &mut Vec<u8>, number: i64) {
    put_number(into, ((number << 1) ^ (number >> 63)) as u64);
}

pub(crate) fn put_bytes(into: &mut Vec<u8>, bytes: &[u8]) {
    put_number(into, bytes.len() as u64);
    into.extend_from_slice(bytes);
}

/// Reads from `bytes` at `at`. Owns no bytes, so that an index can be kept beside its reader.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cursor<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) at: usize,
}

impl<'a> Cursor<'a> {
    pub(crate) fn at_end(&self) -> bool {
        self.at >= self.bytes.len()
    }

    pub(crate) fn byte(&mut self) -> Result<u8, Malformed> {
        let byte = *self.bytes.get(self.at).ok_or(Malformed)?;
        self.at += 1;
        Ok(byte)
    }

    pub(crate) fn number(&mut self) -> Result<u64, Malformed> {
        let mut number = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let part = u64::from(byte & 0x7f);
            if shift == 63 && part > 1 {
                return Err(Malformed);
            }
            number |= part << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(Malformed)
    }

    pub(crate) fn small(&mut self) -> Result<u32, Malformed> {
        u32::try_from(self.number()?).map_err(|_| Malformed)
    }

    pub(crate) fn signed(&mut self) -> Result<i64, Malformed> {
        let number = self.number()?;
        Ok((number >> 1) as i64 ^ -((number & 1) as i64))
    }

    pub(crate) fn take(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        let end = self.at.checked_add(length).ok_or(Malformed)?;
        let taken = self.bytes.get(self.at..end).ok_or(Malformed)?;
        self.at = end;
        Ok(taken)
    }

    pub(crate) fn slice(&mut self) -> Result<&'a [u8], Malformed> {
        let length = usize::try_from(self.number()?).map_err(|_| Malformed)?;
        self.take(length)
    }

    pub(crate) fn hash(&mut self) -> Result<[u8; 32], Malformed> {
        self.take(32)?.try_into().map_err(|_| Malformed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_was_written_is_read(number: u64, signed: i64, text: Vec<u8>) {
            let mut bytes = Vec::new();
            put_number(&mut bytes, number);
            put_signed(&mut bytes, signed);
            put_bytes(&mut bytes, &text);
            let mut cursor = Cursor { bytes: &bytes, at: 0 };
            prop_assert_eq!(cursor.number(), Ok(number));
            prop_assert_eq!(cursor.signed(), Ok(signed));
            prop_assert_eq!(cursor.slice(), Ok(&text[..]));
            prop_assert!(cursor.at_end());
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            let mut cursor = Cursor { bytes: &bytes, at: 0 };
            while !cursor.at_end() {
                if cursor.slice().is_err() {
                    break;
                }
            }
        }
    }
}
