//! Memory of a loaded GGUF with experts: that of the file, without a copy of the stacked tensors on the way.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod counting;
mod expert_file;

use std::sync::Arc;

use candle_core::quantized::GgmlDType;
use counting::{counted, forget_peak};
use expert_file::ExpertFile;
use waymark_models::Arithmetic;
use waymark_models::decoder::Decoder;
use waymark_models::kernel::Team;
use waymark_models::weights::Weights;

#[test]
fn loading_takes_little_more_than_the_file() {
    // A single test, because allocations are counted for the whole process.
    let folder = tempfile::tempdir().unwrap();
    for kind in [GgmlDType::Q4K, GgmlDType::Q8_0] {
        let path = folder.path().join("model.gguf");
        ExpertFile { count: 8, layers: 2, ..ExpertFile::new(kind) }.write(&path, &[]);
        let file = std::fs::metadata(&path).unwrap().len() as usize;
        let team = Arc::new(Team::new(2));
        let before = counted().live;
        forget_peak();
        let weights = Weights::open(&path).unwrap();
        let decoder = Decoder::load_with(&weights, team, Arithmetic::Int16).unwrap();
        let [live, peak] = [counted().live - before, counted().peak - before];
        println!("{kind:?}: file {file}, matrices {}, live {live}, peak {peak}", decoder.weight_bytes());
        assert!(decoder.weight_bytes() * 10 <= file * 11, "{kind:?}: matrices of {} bytes", decoder.weight_bytes());
        assert!(peak * 10 <= file * 11, "{kind:?}: {peak} bytes at most, the file has {file}");
        assert!(live <= peak && live > file / 2, "{kind:?}: {live} bytes");
    }
}
