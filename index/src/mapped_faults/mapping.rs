//! Looks up the mapping that holds an address in the system's list (`/proc/self/maps`), without allocating.

/// Longest path that is recognized.
const LONGEST: usize = 4096;

/// Mapping of the process.
#[derive(Debug)]
pub(super) struct Mapping {
    start: usize,
    /// Address after the last byte.
    pub(super) end: usize,
    path: [u8; LONGEST],
    length: usize,
    /// Index of the current column in the line, from 0. Column 5 is the path.
    column: usize,
}

impl Mapping {
    const NONE: Mapping = Mapping { start: 0, end: 0, path: [0; LONGEST], length: 0, column: 0 };

    /// Finds the mapping that holds `address`. `read` fills a buffer with the next bytes of the list and returns their
    /// number, 0 at its end.
    pub(super) fn holding(address: usize, mut read: impl FnMut(&mut [u8]) -> usize) -> Option<Mapping> {
        let mut mapping = Mapping::NONE;
        let mut buffer = [0; 1024];
        loop {
            let count = read(&mut buffer);
            if count == 0 {
                return None;
            }
            for &byte in buffer.iter().take(count) {
                if byte != b'\n' {
                    mapping.take(byte);
                } else if (mapping.start..mapping.end).contains(&address) {
                    return Some(mapping);
                } else {
                    (mapping.start, mapping.end, mapping.length, mapping.column) = (0, 0, 0, 0);
                }
            }
        }
    }

    /// Path of the mapped file. Empty for memory without a file.
    pub(super) fn path(&self) -> &[u8] {
        self.path.get(..self.length).unwrap_or_default()
    }

    /// Takes the next character of a line: `start-end permissions offset device inode   path`, the numbers in
    /// hexadecimal.
    fn take(&mut self, byte: u8) {
        // The start and the end are one column, with a hyphen between them.
        match (self.column, byte) {
            (0, b'-') => (self.start, self.end) = (self.end, 0),
            (0..5, b' ') => self.column += 1,
            (0, digit) => {
                let digit = char::from(digit).to_digit(16).unwrap_or_default() as usize;
                self.end = self.end.wrapping_mul(16).wrapping_add(digit);
            }
            (5, b' ') if self.length == 0 => {}
            (5, byte) => {
                if let Some(place) = self.path.get_mut(self.length) {
                    *place = byte;
                    self.length += 1;
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const MAPS: &str = "\
00400000-00452000 r-xp 00000000 08:02 173521      /usr/bin/a program
7f00a000-7f00c000 rw-p 00000000 00:00 0 
7f00c000-7f00f000 r--s 00001000 08:02 99          /index/snapshot-1/vectors.bin (deleted)
";

    fn found(address: usize, step: usize) -> Option<(usize, String)> {
        let mut rest = MAPS.as_bytes();
        let read = |buffer: &mut [u8]| {
            let count = rest.len().min(step).min(buffer.len());
            buffer[..count].copy_from_slice(&rest[..count]);
            rest = &rest[count..];
            count
        };
        let mapping = Mapping::holding(address, read)?;
        Some((mapping.end, String::from_utf8(mapping.path().to_vec()).unwrap()))
    }

    #[test]
    fn an_address_finds_its_file_however_the_list_is_read() {
        for step in [1, 7, 50, 1024] {
            assert_eq!(found(0x40_0000, step), Some((0x45_2000, "/usr/bin/a program".to_owned())));
            assert_eq!(found(0x7f00_bfff, step), Some((0x7f00_c000, String::new())));
            let deleted = "/index/snapshot-1/vectors.bin (deleted)".to_owned();
            assert_eq!(found(0x7f00_c000, step), Some((0x7f00_f000, deleted)));
            assert_eq!(found(0x7f00_f000, step), None);
            assert_eq!(found(0, step), None);
        }
    }
}
