//! Writer of the passage store.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use super::MAGIC;
use crate::corpus::Document;
use crate::error::IndexError;

/// Passage store being written. Keeps only IDs and offsets in memory.
#[derive(Debug)]
pub(crate) struct StoreWriter {
    path: PathBuf,
    out: BufWriter<File>,
    position: u64,
    offsets: Vec<u64>,
    ids: Vec<Box<str>>,
}

impl StoreWriter {
    pub(crate) fn create(path: &Path) -> Result<StoreWriter, IndexError> {
        let file = File::create_new(path).map_err(IndexError::io("create", path))?;
        let offsets = Vec::new();
        let ids = Vec::new();
        let mut store = StoreWriter {
            path: path.to_owned(),
            out: BufWriter::with_capacity(1 << 18, file),
            position: 0,
            offsets,
            ids,
        };
        store.write(&MAGIC)?;
        Ok(store)
    }

    /// Appends a document, whose number is the count of earlier documents. The corpus guarantees that IDs are unique.
    pub(crate) fn add(&mut self, document: &Document) -> Result<(), IndexError> {
        self.offsets.push(self.position);
        self.ids.push(document.id.as_str().into());
        let metadata = document.metadata.as_ref().map(|map| serde_json::Value::Object(map.clone()).to_string());
        let fields = [&document.id, &document.title, &document.text, metadata.as_deref().unwrap_or_default()];
        for field in fields {
            let length = u32::try_from(field.len()).map_err(|_| IndexError::Io {
                action: "store a passage of more than 4 GiB in",
                path: self.path.clone(),
                source: std::io::ErrorKind::FileTooLarge.into(),
            })?;
            self.write(&length.to_le_bytes())?;
        }
        fields.iter().try_for_each(|field| self.write(field.as_bytes()))
    }

    /// Writes the tables. The file is complete but not yet synced.
    pub(crate) fn finish(mut self) -> Result<(), IndexError> {
        let offsets = std::mem::take(&mut self.offsets);
        let table = self.position;
        for offset in offsets.iter().chain([&table]) {
            self.write(&offset.to_le_bytes())?;
        }
        let ids = std::mem::take(&mut self.ids);
        let mut order: Vec<u32> = (0..).take(ids.len()).collect();
        // IDs are looked up by bisection: a hash table would be larger, and not readable in place.
        order.sort_unstable_by_key(|&number| &ids[number as usize]);
        for number in order {
            self.write(&number.to_le_bytes())?;
        }
        self.write(&(ids.len() as u64).to_le_bytes())?;
        self.write(&table.to_le_bytes())?;
        self.write(&MAGIC)?;
        self.out.flush().map_err(IndexError::io("write", &self.path))
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), IndexError> {
        self.position += bytes.len() as u64;
        self.out.write_all(bytes).map_err(IndexError::io("write", &self.path))
    }
}
