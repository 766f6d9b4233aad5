//! TFRecord: the framing of TensorFlow's files.
//!
//! ```text
//! length: u64   masked crc32c of the length's bytes: u32   data   masked crc32c of the data: u32      little-endian
//! ```
//!
//! The format is that of TensorFlow's `core/lib/io/record_writer.cc`.

/// Frames data as a record.
pub(super) fn frame(data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u64).to_le_bytes();
    let mut record = Vec::with_capacity(data.len() + 16);
    record.extend_from_slice(&length);
    record.extend_from_slice(&masked(&length).to_le_bytes());
    record.extend_from_slice(data);
    record.extend_from_slice(&masked(data).to_le_bytes());
    record
}

/// Masks a checksum as TensorFlow does (`core/lib/hash/crc32c.h`): rotates it and adds a constant, because a CRC of
/// data that contains CRCs is weak.
fn masked(data: &[u8]) -> u32 {
    crc32c(data).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// Computes CRC-32C (Castagnoli), RFC 3720 B.4, with the reflected polynomial 0x82f63b78. Works byte by byte, which
/// is fast enough for scalars.
fn crc32c(data: &[u8]) -> u32 {
    !data.iter().fold(!0, |crc, &byte| (crc >> 8) ^ TABLE[usize::from(crc as u8 ^ byte)])
}

const TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ 0x82f6_3b78 } else { crc >> 1 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the test vectors of RFC 3720, B.4.
    #[test]
    fn checksums_are_those_of_the_rfc() {
        let ascending: Vec<u8> = (0..32).collect();
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(crc32c(&ascending), 0x46dd_794e);
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(b""), 0);
    }
}
