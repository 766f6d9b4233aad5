//! Tests that read event files with an independent reader: checksums bit by bit, protobuf by hand.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// Computes CRC-32C as a polynomial division, bit by bit.
fn crc(data: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for bit in data.iter().flat_map(|byte| (0..8).map(move |at| u32::from(byte >> at & 1))) {
        let carry = (crc ^ bit) & 1;
        crc = (crc >> 1) ^ (carry * 0x82f6_3b78);
    }
    let crc = u64::from(!crc);
    ((crc >> 15 | crc << 17) + 0xa282_ead8) as u32
}

fn records(mut file: &[u8]) -> Vec<&[u8]> {
    let mut records = Vec::new();
    while !file.is_empty() {
        let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
        assert_eq!(file[8..12], crc(&file[..8]).to_le_bytes());
        let data = &file[12..12 + length];
        assert_eq!(file[12 + length..16 + length], crc(data).to_le_bytes());
        records.push(data);
        file = &file[16 + length..];
    }
    records
}

fn varint(data: &mut &[u8]) -> u64 {
    let mut value = 0;
    for at in 0.. {
        let byte = data[0];
        *data = &data[1..];
        value |= u64::from(byte & 0x7f) << (7 * at);
        if byte < 0x80 {
            break;
        }
    }
    value
}

/// Splits a message into fields: number and bytes (little-endian for varints).
fn fields(mut data: &[u8]) -> Vec<(u64, Vec<u8>)> {
    let mut fields = Vec::new();
    while !data.is_empty() {
        let key = varint(&mut data);
        let length = match key & 7 {
            0 => {
                fields.push((key >> 3, varint(&mut data).to_le_bytes().to_vec()));
                continue;
            }
            1 => 8,
            2 => varint(&mut data) as usize,
            5 => 4,
            other => panic!("wire type {other}"),
        };
        fields.push((key >> 3, data[..length].to_vec()));
        data = &data[length..];
    }
    fields
}

#[derive(Debug, Default, PartialEq)]
struct ReadEvent {
    step: u64,
    version: Option<String>,
    start: bool,
    scalars: BTreeMap<String, f32>,
}

fn event(data: &[u8]) -> ReadEvent {
    let mut event = ReadEvent::default();
    for (field, bytes) in fields(data) {
        match field {
            1 => assert!(f64::from_le_bytes(bytes.try_into().unwrap()) > 1.6e9),
            2 => event.step = u64::from_le_bytes(bytes.try_into().unwrap()),
            3 => event.version = Some(String::from_utf8(bytes).unwrap()),
            5 => {
                for (field, value) in fields(&bytes) {
                    assert_eq!(field, 1);
                    let scalar: BTreeMap<_, _> = fields(&value).into_iter().collect();
                    let number = f32::from_le_bytes(scalar[&2].clone().try_into().unwrap());
                    event.scalars.insert(String::from_utf8(scalar[&1].clone()).unwrap(), number);
                }
            }
            7 => event.start = fields(&bytes) == [(1, 1u64.to_le_bytes().to_vec())],
            other => panic!("field {other}"),
        }
    }
    event
}

/// Reads the events of each file, in TensorBoard's order.
fn read(dir: &Path) -> Vec<Vec<ReadEvent>> {
    let mut paths: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| records(&fs::read(path).unwrap()).into_iter().map(event).collect()).collect()
}

#[test]
fn resumed_runs_have_two_event_files() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("events");
    let mut board = EventWriter::resume(&dir, 0).unwrap();
    board.append(&MetricsRow::new(1, "sft", 0.0).with("loss", 2.5).with("time/step", f64::NAN)).unwrap();
    board.append(&MetricsRow::new(300, "sft", 0.0)).unwrap();
    EventWriter::resume(&dir, 1 << 40).unwrap();

    let version = || ReadEvent { version: Some("brain.Event:2".into()), ..ReadEvent::default() };
    let files = read(&dir);
    assert_eq!(files.len(), 2);
    assert_eq!(files[0][..2], [version(), ReadEvent { start: true, ..ReadEvent::default() }]);
    assert_eq!(files[0].len(), 3);
    assert_eq!(files[0][2].step, 1);
    assert_eq!(files[0][2].scalars["sft/loss"], 2.5);
    assert!(files[0][2].scalars["time/step"].is_nan());
    assert_eq!(files[1], [version(), ReadEvent { step: (1 << 40) + 1, start: true, ..ReadEvent::default() }]);
}

proptest! {
    #[test]
    fn scalars_round_trip(step in any::<u64>(), values in prop::collection::btree_map("[^/]{0,40}", any::<f32>(), 1..8)) {
        let row = MetricsRow { values: values.iter().map(|(name, &value)| (name.clone(), value.into())).collect(), ..MetricsRow::new(step, "p", 0.0) };
        let temp = tempfile::tempdir().unwrap();
        EventWriter::resume(temp.path(), 0).unwrap().append(&row).unwrap();
        let scalars: BTreeMap<_, _> = values.iter().map(|(name, &value)| (format!("p/{name}"), value)).collect();
        let files = read(temp.path());
        let last = files[0].last().unwrap();
        prop_assert_eq!(last.step, step);
        prop_assert_eq!(format!("{:?}", last.scalars), format!("{:?}", scalars));
    }
}
