//! Random changes to an input, like those of libFuzzer but without its feedback from code coverage.

use proptest::prelude::*;

/// Maximum length of an input in bytes, as in `fuzz/run`.
const LONGEST: usize = 8192;

/// One change, at a place given as a share of the length.
#[derive(Debug, Clone)]
pub enum Change {
    /// Another byte.
    Set(f64, u8),
    /// One bit turned.
    Flip(f64, u8),
    /// Bytes put in.
    Insert(f64, Vec<u8>),
    /// Bytes taken out.
    Remove(f64, usize),
    /// A run of bytes repeated.
    Repeat(f64, usize, usize),
    /// Cut off here.
    Truncate(f64),
    /// The rest taken from another input.
    Splice(f64),
}

/// Generates a few changes.
pub fn changes() -> impl Strategy<Value = Vec<Change>> {
    let place = || 0.0..1.0;
    // Bytes for which parsers have special cases.
    let telling = prop::sample::select(vec![0, 1, 0x7f, 0x80, 0xff, b'"', b'\\', b'<', b'>', b'{', b'[', b'\n', b'%']);
    let change = prop_oneof![
        (place(), any::<u8>()).prop_map(|(at, byte)| Change::Set(at, byte)),
        (place(), telling).prop_map(|(at, byte)| Change::Set(at, byte)),
        (place(), 0u8..8).prop_map(|(at, bit)| Change::Flip(at, bit)),
        (place(), prop::collection::vec(any::<u8>(), 1..9)).prop_map(|(at, bytes)| Change::Insert(at, bytes)),
        (place(), 1usize..20).prop_map(|(at, length)| Change::Remove(at, length)),
        (place(), 1usize..20, 1usize..60).prop_map(|(at, length, times)| Change::Repeat(at, length, times)),
        place().prop_map(Change::Truncate),
        place().prop_map(Change::Splice),
    ];
    prop::collection::vec(change, 1..6)
}

impl Change {
    /// Applies all `changes` to `seed`, one after the other.
    pub fn apply_all(seed: Vec<u8>, other: &[u8], changes: &[Change]) -> Vec<u8> {
        changes.iter().fold(seed, |bytes, change| change.apply(bytes, other))
    }

    fn apply(&self, mut bytes: Vec<u8>, other: &[u8]) -> Vec<u8> {
        let place = |at: f64, length: usize| ((length as f64 * at) as usize).min(length);
        let length = bytes.len();
        match self {
            Change::Set(at, byte) => {
                if let Some(old) = bytes.get_mut(place(*at, length)) {
                    *old = *byte;
                }
            }
            Change::Flip(at, bit) => {
                if let Some(old) = bytes.get_mut(place(*at, length)) {
                    *old ^= 1 << bit;
                }
            }
            Change::Insert(at, new) => drop(bytes.splice(place(*at, length)..place(*at, length), new.iter().copied())),
            Change::Remove(at, count) => {
                drop(bytes.drain(place(*at, length)..(place(*at, length) + count).min(length)))
            }
            Change::Repeat(at, count, times) => {
                let range = place(*at, length)..(place(*at, length) + count).min(length);
                let said = bytes[range.clone()].repeat(*times);
                drop(bytes.splice(range.end..range.end, said));
            }
            Change::Truncate(at) => bytes.truncate(place(*at, length)),
            Change::Splice(at) => {
                bytes.truncate(place(*at, length));
                bytes.extend_from_slice(&other[place(*at, other.len())..]);
            }
        }
        bytes.truncate(LONGEST);
        bytes
    }
}
