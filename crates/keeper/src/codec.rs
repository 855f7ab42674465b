//! Plain binary fields: little-endian numbers, bytes after their length, lists after their count.
//!
//! Every length is checked against what is left of the frame before anything is allocated, and a frame is
//! bounded by its reader, so that nobody can make the other side hold more than a frame's worth.

use std::fmt;

/// What could not be read, by the name of its kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed(pub &'static str);

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a malformed frame: {}", self.0)
    }
}

impl std::error::Error for Malformed {}

/// The bytes of a frame not read yet.
#[derive(Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(crate) fn take(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        if length > self.rest.len() {
            return Err(Malformed("a length beyond the frame"));
        }
        let (taken, rest) = self.rest.split_at(length);
        self.rest = rest;
        Ok(taken)
    }

    pub(crate) fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// A frame holds what its kind says and nothing after it.
    pub fn finish(self) -> Result<(), Malformed> {
        if self.rest.is_empty() { Ok(()) } else { Err(Malformed("bytes after the end")) }
    }
}

/// Something that can be put into a frame and got back.
pub trait Field: Sized {
    fn put(&self, to: &mut Vec<u8>);
    fn get(from: &mut Reader<'_>) -> Result<Self, Malformed>;
}

macro_rules! number {
    ($($kind:ty),*) => {$(
        impl Field for $kind {
            fn put(&self, to: &mut Vec<u8>) {
                to.extend_from_slice(&self.to_le_bytes());
            }
            fn get(from: &mut Reader<'_>) -> Result<Self, Malformed> {
                let mut bytes = [0; size_of::<$kind>()];
                bytes.copy_from_slice(from.take(size_of::<$kind>())?);
                Ok(<$kind>::from_le_bytes(bytes))
            }
        }
    )*};
}

number!(u8, u16, u32, u64, i32);

impl Field for bool {
    fn put(&self, to: &mut Vec<u8>) {
        to.push(u8::from(*self));
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        match u8::get(from)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed("neither yes nor no")),
        }
    }
}

/// Bytes of any length that fits its frame.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Blob(pub Vec<u8>);

impl fmt::Debug for Blob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Arguments, environments and input hold secrets.
        write!(f, "{} bytes", self.0.len())
    }
}

impl Field for Blob {
    fn put(&self, to: &mut Vec<u8>) {
        put_bytes(&self.0, to);
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let length = u32::get(from)? as usize;
        Ok(Self(from.take(length)?.to_vec()))
    }
}

pub(crate) fn put_bytes(bytes: &[u8], to: &mut Vec<u8>) {
    // A frame's bound is far below; a longer one would be refused whole by `frame`.
    u32::try_from(bytes.len()).unwrap_or(u32::MAX).put(to);
    to.extend_from_slice(bytes);
}

impl Field for String {
    fn put(&self, to: &mut Vec<u8>) {
        put_bytes(self.as_bytes(), to);
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Self::from_utf8(Blob::get(from)?.0).map_err(|_| Malformed("text that is not UTF-8"))
    }
}

impl<const N: usize> Field for [u8; N] {
    fn put(&self, to: &mut Vec<u8>) {
        to.extend_from_slice(self);
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let mut bytes = [0; N];
        bytes.copy_from_slice(from.take(N)?);
        Ok(bytes)
    }
}

impl<T: Field> Field for Vec<T> {
    fn put(&self, to: &mut Vec<u8>) {
        u32::try_from(self.len()).unwrap_or(u32::MAX).put(to);
        for item in self {
            item.put(to);
        }
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let count = u32::get(from)? as usize;
        // Every item takes a byte at least, so a count beyond the frame is a lie.
        if count > from.remaining() {
            return Err(Malformed("a count beyond the frame"));
        }
        (0..count).map(|_| T::get(from)).collect()
    }
}

impl<T: Field> Field for Option<T> {
    fn put(&self, to: &mut Vec<u8>) {
        self.is_some().put(to);
        if let Some(inner) = self {
            inner.put(to);
        }
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(if bool::get(from)? { Some(T::get(from)?) } else { None })
    }
}

/// A struct whose fields cross in the order written.
macro_rules! record {
    ($(#[$meta:meta])* pub struct $name:ident { $($(#[$inner:meta])* pub $field:ident: $kind:ty,)* }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct $name { $($(#[$inner])* pub $field: $kind,)* }

        impl $crate::codec::Field for $name {
            fn put(&self, to: &mut Vec<u8>) {
                $($crate::codec::Field::put(&self.$field, to);)*
            }
            fn get(from: &mut $crate::codec::Reader<'_>) -> Result<Self, $crate::codec::Malformed> {
                Ok(Self { $($field: $crate::codec::Field::get(from)?,)* })
            }
        }
    };
}

/// An enum behind a byte that says which.
macro_rules! choice {
    ($(#[$meta:meta])* pub enum $name:ident {
        $($(#[$inner:meta])* $number:literal => $variant:ident { $($field:ident: $kind:ty),* $(,)? },)*
    }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum $name { $($(#[$inner])* $variant { $($field: $kind),* },)* }

        impl $crate::codec::Field for $name {
            fn put(&self, to: &mut Vec<u8>) {
                match self {
                    $(Self::$variant { $($field),* } => {
                        to.push($number);
                        $($crate::codec::Field::put($field, to);)*
                    })*
                }
            }
            fn get(from: &mut $crate::codec::Reader<'_>) -> Result<Self, $crate::codec::Malformed> {
                match u8::get(from)? {
                    $($number => Ok(Self::$variant { $($field: $crate::codec::Field::get(from)?),* }),)*
                    _ => Err($crate::codec::Malformed(concat!("no such ", stringify!($name)))),
                }
            }
        }
    };
}

/// An enum of words only.
macro_rules! word {
    ($(#[$meta:meta])* pub enum $name:ident { $($(#[$inner:meta])* $number:literal => $variant:ident,)* }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name { $($(#[$inner])* $variant,)* }

        impl $name {
            pub const ALL: &[Self] = &[$(Self::$variant),*];
        }

        impl $crate::codec::Field for $name {
            fn put(&self, to: &mut Vec<u8>) {
                to.push(match self { $(Self::$variant => $number,)* });
            }
            fn get(from: &mut $crate::codec::Reader<'_>) -> Result<Self, $crate::codec::Malformed> {
                match u8::get(from)? {
                    $($number => Ok(Self::$variant),)*
                    _ => Err($crate::codec::Malformed(concat!("no such ", stringify!($name)))),
                }
            }
        }
    };
}

pub(crate) use {choice, record, word};
