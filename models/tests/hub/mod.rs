//! A miniature model hub: implements the part of the protocol that a pull uses, and can break off downloads.
#![allow(clippy::unwrap_used, clippy::expect_used, unreachable_pub)]

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// Serves the files of one repository until the process ends.
pub struct Hub {
    pub address: String,
    state: Arc<State>,
}

struct State {
    files: Files,
    /// Files that replace those of `main` once the repository was described. `None` if the branch does not move.
    pushed: Mutex<Option<Files>>,
    described: AtomicBool,
    /// Number of bytes after which the next download breaks off; 0 for never.
    cut: AtomicUsize,
    /// ETag of every file. `None` derives it from the size of the file.
    etag: Mutex<Option<String>>,
    /// Requested files with the first requested byte, one entry per download.
    starts: Mutex<Vec<(String, usize)>>,
}

type Files = HashMap<String, Vec<u8>>;

/// Commit hashes of [`State::files`] and of [`State::pushed`].
const COMMIT: &str = "c0ffee";
const PUSHED: &str = "decade";

fn files(list: &[(&str, &[u8])]) -> Files {
    list.iter().map(|(name, bytes)| ((*name).to_owned(), bytes.to_vec())).collect()
}

impl Hub {
    pub fn serve(list: &[(&str, &[u8])]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let state = Arc::new(State {
            files: files(list),
            pushed: Mutex::default(),
            described: AtomicBool::new(false),
            cut: AtomicUsize::new(0),
            etag: Mutex::default(),
            starts: Mutex::default(),
        });
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let state = Arc::clone(&shared);
                std::thread::spawn(move || state.answer(stream.unwrap()));
            }
        });
        Self { address, state }
    }

    /// Breaks off every download after the given number of bytes.
    pub fn cut(&self, bytes: usize) {
        self.state.cut.store(bytes, Ordering::SeqCst);
    }

    /// Sends the same ETag for every file.
    pub fn tag(&self, etag: &str) {
        *self.state.etag.lock().unwrap() = Some(etag.to_owned());
    }

    /// Moves `main` to other files as soon as a client has requested its description.
    pub fn push(&self, list: &[(&str, &[u8])]) {
        *self.state.pushed.lock().unwrap() = Some(files(list));
    }

    /// Downloaded files with the first requested byte. Leaves out single-byte requests, which ask for metadata.
    pub fn starts(&self) -> Vec<(String, usize)> {
        self.state.starts.lock().unwrap().clone()
    }
}

impl State {
    fn answer(&self, mut stream: TcpStream) {
        let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
        let Some(request) = lines.next() else { return };
        let headers: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
        let path = request.split(' ').nth(1).unwrap();
        if path.starts_with("/api/models/") {
            let names: Vec<_> = self.files.keys().map(|name| serde_json::json!({ "rfilename": name })).collect();
            let body = serde_json::json!({ "siblings": names, "sha": COMMIT }).to_string();
            self.described.store(true, Ordering::SeqCst);
            let _ =
                write!(stream, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}", body.len());
            return;
        }
        let asked = path.split_once("/resolve/").and_then(|(_, rest)| rest.split_once('/'));
        let pushed = self.pushed.lock().unwrap().clone().filter(|_| self.described.load(Ordering::SeqCst));
        let found = asked.and_then(|(revision, name)| {
            let (commit, files) = match (revision, &pushed) {
                ("main", Some(pushed)) => (PUSHED, pushed),
                ("main" | COMMIT, _) => (COMMIT, &self.files),
                _ => return None,
            };
            files.get_key_value(name).map(|(name, bytes)| (commit, name, bytes))
        });
        let Some((commit, name, bytes)) = found else {
            let _ = write!(stream, "HTTP/1.1 404 Not Found\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
            return;
        };
        let range =
            headers.iter().find_map(|line| line.to_lowercase().strip_prefix("range: bytes=").map(str::to_owned));
        let (start, end) = match range.as_deref().and_then(|range| range.split_once('-')) {
            Some((start, "")) => (start.parse().unwrap(), bytes.len()),
            Some((start, end)) => (start.parse().unwrap(), end.parse::<usize>().unwrap() + 1),
            None => (0, bytes.len()),
        };
        let end = end.min(bytes.len());
        let whole = bytes.len();
        if start >= whole {
            let status = "416 Range Not Satisfiable";
            let _ = write!(stream, "HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
            return;
        }
        let etag = self.etag.lock().unwrap().clone().unwrap_or_else(|| format!("etag-{whole}"));
        let _ = write!(
            stream,
            "HTTP/1.1 206 Partial Content\r\nConnection: close\r\nETag: \"{etag}\"\r\nX-Repo-Commit: {commit}\r\n\
             Content-Range: bytes {start}-{}/{whole}\r\nContent-Length: {}\r\n\r\n",
            end.saturating_sub(1),
            end - start
        );
        if request.starts_with("HEAD") {
            return;
        }
        if end - start > 1 {
            self.starts.lock().unwrap().push((name.clone(), start));
        }
        let cut = self.cut.load(Ordering::SeqCst);
        let sent = if cut > 0 && end - start > 1 { (end - start).min(cut) } else { end - start };
        let _ = stream.write_all(&bytes[start..start + sent]);
    }
}
