//! Downloads of single files over HTTP, which continue where an interrupted one stopped.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::thread;
use std::time::Duration;

use ureq::Agent;
use ureq::config::RedirectAuthHeaders;

use super::PullError;

/// Number of attempts. Each continues where the one before stopped.
const ATTEMPTS: usize = 3;

/// Pause before another attempt.
const PAUSE: Duration = Duration::from_millis(500);

/// Client of a hub that writes to paths of the caller's choice. `hf-hub` chooses them by the ETag, which may be the
/// path of any file.
pub(super) struct Downloader {
    /// ID of the repository, for error messages.
    id: String,
    agent: Agent,
    authorization: Option<String>,
}

impl Downloader {
    /// Creates a client that sends `token` to the hub, but not to the stores that the hub redirects to.
    pub(super) fn new(id: &str, token: Option<&str>, connect: Duration) -> Self {
        let agent = Agent::config_builder()
            .timeout_connect(Some(connect))
            .redirect_auth_headers(RedirectAuthHeaders::SameHost)
            .user_agent(concat!("waymark/", env!("CARGO_PKG_VERSION")))
            .build()
            .new_agent();
        let authorization = token.map(|token| format!("Bearer {token}"));
        Self { id: id.to_owned(), agent, authorization }
    }

    /// Downloads a file of `size` bytes to `part`, which may have its first bytes already. Passes the number of bytes
    /// so far to `heard`.
    pub(super) fn download(&self, url: &str, size: u64, part: &Path, heard: &dyn Fn(u64)) -> Result<(), PullError> {
        let mut attempt = 1;
        loop {
            match self.download_rest(url, size, part, heard) {
                Err(PullError::Hub { .. }) if attempt < ATTEMPTS => thread::sleep(PAUSE),
                result => return result,
            }
            attempt += 1;
        }
    }

    fn download_rest(&self, url: &str, size: u64, part: &Path, heard: &dyn Fn(u64)) -> Result<(), PullError> {
        let mut file = File::options().create(true).append(true).open(part).map_err(PullError::io(part))?;
        let mut done = file.metadata().map_err(PullError::io(part))?.len();
        if done > size {
            // It cannot be the beginning of this file.
            file.set_len(0).map_err(PullError::io(part))?;
            done = 0;
        }
        if done == size {
            return Ok(());
        }
        let mut request = self.agent.get(url).header("Range", format!("bytes={done}-"));
        if let Some(authorization) = &self.authorization {
            request = request.header("Authorization", authorization);
        }
        let response = request.call().map_err(|error| self.failed(error.to_string()))?;
        // Any other status stands for the whole file.
        if done > 0 && response.status() != 206 {
            file.set_len(0).map_err(PullError::io(part))?;
            done = 0;
        }
        let mut reader = response.into_body().into_reader().take(size - done);
        let mut buffer = vec![0; 1 << 16];
        loop {
            match reader.read(&mut buffer).map_err(|error| self.failed(error.to_string()))? {
                0 if done < size => return Err(self.failed(format!("{url} ended after {done} of {size} bytes"))),
                0 => return Ok(()),
                count => {
                    file.write_all(&buffer[..count]).map_err(PullError::io(part))?;
                    done += count as u64;
                    heard(done);
                }
            }
        }
    }

    fn failed(&self, reason: String) -> PullError {
        PullError::Hub { id: self.id.clone(), reason }
    }
}
