//! Sealed reasoning: `reasoning.encrypted_content`, which a client keeps and may send back.
//!
//! A seal is base64url text of `key ID (16 bytes) | nonce (12 bytes) | ciphertext | tag (16 bytes)` by
//! ChaCha20-Poly1305 (RFC 8439). The associated data is the tenant, so no other tenant can use the seal. Servers
//! over one state share its secrets; without a state, seals end with the process.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use serde_json::Value;
use uuid::Uuid;

use super::request::ResponsesInput;
use crate::api::auth::Caller;
use crate::api::error::{ApiError, Code};
use crate::api::records::Records;
use crate::keys::KeyOwner;
use crate::store::{RecordKey, RecordKind, RecordOrder, RecordRange};

/// Maximum number of secrets that are read. Servers that start at the same time may each add one.
const MAX_SECRETS: usize = 64;

/// Length of the ID of a secret.
const ID_LEN: usize = 16;

/// Secrets of the server, read when they are first needed; clones share them.
#[derive(Debug, Clone)]
pub(super) struct Seals {
    records: Records,
    secrets: Arc<Mutex<Vec<SealSecret>>>,
}

/// Key that seals reasoning.
#[derive(Clone)]
struct SealSecret {
    id: Uuid,
    key: Arc<LessSafeKey>,
}

impl fmt::Debug for SealSecret {
    // The key itself must not reach a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SealSecret").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Seals texts for one tenant.
#[derive(Debug, Clone)]
pub(super) struct Sealer {
    secret: SealSecret,
    owner: Option<KeyOwner>,
}

impl Seals {
    pub(super) fn new(records: Records) -> Seals {
        Seals { records, secrets: Arc::default() }
    }

    /// Returns a sealer for the caller. The first call creates a secret if the state has none.
    ///
    /// # Errors
    /// 503 if the state cannot be read or written.
    pub(super) async fn sealer(&self, caller: &Caller) -> Result<Sealer, ApiError> {
        let known = self.known().first().cloned();
        let secret = match known {
            Some(secret) => secret,
            None => self.first().await?,
        };
        Ok(Sealer { secret, owner: caller.owner })
    }

    /// Checks that the sealed reasoning in an input is the server's own, for this caller.
    ///
    /// # Errors
    /// Names the item whose seal is not the server's own for this caller; 503 if the state cannot be read.
    pub(super) async fn check(&self, caller: &Caller, input: &ResponsesInput) -> Result<(), ApiError> {
        let ResponsesInput::Items(items) = input else { return Ok(()) };
        let mut read_again = true;
        for (at, item) in items.iter().enumerate().filter(|(_, item)| is_reasoning(item)) {
            let Some(sealed) = item.get("encrypted_content").filter(|sealed| !sealed.is_null()) else { continue };
            let param = format!("input[{at}].encrypted_content");
            let forged = || {
                let message = format!("`{param}` was not made by this server for this key: leave the item out");
                ApiError::invalid(&param, message)
            };
            let sealed = sealed.as_str().and_then(Sealed::parse).ok_or_else(forged)?;
            if read_again && !self.known().iter().any(|secret| secret.id == sealed.secret) {
                // Another server may have added its secret. Once per request suffices.
                self.refresh().await?;
                read_again = false;
            }
            let secret = self.known().iter().find(|secret| secret.id == sealed.secret).cloned();
            secret.and_then(|secret| sealed.open(&secret, caller.owner)).ok_or_else(forged)?;
        }
        Ok(())
    }

    /// Returns the oldest secret of the state, after adding one if it has none.
    async fn first(&self) -> Result<SealSecret, ApiError> {
        self.refresh().await?;
        if self.known().is_empty() {
            // One secret serves all tenants, whom the associated data keeps apart.
            let key = RecordKey::new(RecordKind::Secret, None, Uuid::new_v4().simple().to_string());
            self.records.put(key, rand::random::<[u8; 32]>().to_vec()).await?;
            // Another server may have added one before.
            self.refresh().await?;
        }
        let first = self.known().first().cloned();
        first.ok_or_else(|| ApiError::new(Code::StateUnavailable, "the server's state has no secret"))
    }

    async fn refresh(&self) -> Result<(), ApiError> {
        let youngest = RecordRange::youngest(RecordKind::Secret, None, MAX_SECRETS);
        // Oldest first, so servers that each added a secret agree on the first one.
        let range = RecordRange { order: RecordOrder::Ascending, ..youngest };
        let listed = self.records.list::<Vec<u8>>(&range).await?;
        let secrets = listed.into_iter().filter_map(|listed| SealSecret::new(&listed.id, &listed.value)).collect();
        *self.known() = secrets;
        Ok(())
    }

    fn known(&self) -> MutexGuard<'_, Vec<SealSecret>> {
        self.secrets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_reasoning(item: &Value) -> bool {
    item.get("type").and_then(Value::as_str) == Some("reasoning")
}

impl SealSecret {
    fn new(id: &str, bytes: &[u8]) -> Option<SealSecret> {
        let key = UnboundKey::new(&CHACHA20_POLY1305, bytes).ok()?;
        Some(SealSecret { id: Uuid::parse_str(id).ok()?, key: Arc::new(LessSafeKey::new(key)) })
    }
}

fn associated(owner: Option<KeyOwner>) -> Aad<String> {
    Aad::from(owner.map_or_else(String::new, |owner| owner.to_string()))
}

impl Sealer {
    /// Returns the seal of a text. `None` if the text is larger than the cipher allows, 256 GiB.
    pub(super) fn seal(&self, text: &str) -> Option<String> {
        // Random, because servers share the secret but no counter.
        let nonce: [u8; NONCE_LEN] = rand::random();
        let mut bytes = text.as_bytes().to_vec();
        let sealing = Nonce::assume_unique_for_key(nonce);
        self.secret.key.seal_in_place_append_tag(sealing, associated(self.owner), &mut bytes).ok()?;
        let whole = [self.secret.id.as_bytes().as_slice(), &nonce, &bytes].concat();
        Some(URL_SAFE_NO_PAD.encode(whole))
    }
}

/// Parts of a seal.
struct Sealed {
    secret: Uuid,
    nonce: [u8; NONCE_LEN],
    bytes: Vec<u8>,
}

impl Sealed {
    fn parse(text: &str) -> Option<Sealed> {
        let whole = URL_SAFE_NO_PAD.decode(text).ok()?;
        let (id, rest) = whole.split_first_chunk::<ID_LEN>()?;
        let (nonce, bytes) = rest.split_first_chunk::<NONCE_LEN>()?;
        Some(Sealed { secret: Uuid::from_bytes(*id), nonce: *nonce, bytes: bytes.to_vec() })
    }

    /// Returns the sealed text. `None` if the seal is not that of the secret and the tenant.
    fn open(mut self, secret: &SealSecret, owner: Option<KeyOwner>) -> Option<String> {
        let nonce = Nonce::assume_unique_for_key(self.nonce);
        let text = secret.key.open_in_place(nonce, associated(owner), &mut self.bytes).ok()?;
        String::from_utf8(text.to_vec()).ok()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn secret() -> SealSecret {
        SealSecret::new(&Uuid::new_v4().simple().to_string(), &[7; 32]).unwrap()
    }

    #[test]
    fn a_seal_is_opened_by_its_secret_and_its_tenant_alone() {
        let alice = KeyOwner::parse("a");
        let bob = KeyOwner::parse("b");
        let secret = secret();
        let seal = Sealer { secret: secret.clone(), owner: alice }.seal("h\u{fc}").unwrap();
        assert!(!seal.contains("h\u{fc}"));
        let open = |text: &str, owner| Sealed::parse(text).and_then(|sealed| sealed.open(&secret, owner));
        assert_eq!(open(&seal, alice).as_deref(), Some("h\u{fc}"));
        assert_eq!((open(&seal, bob), open(&seal, None)), (None, None));
        for at in [0, 25, seal.len() - 2] {
            let mut forged: Vec<char> = seal.chars().collect();
            forged[at] = if forged[at] == 'A' { 'B' } else { 'A' };
            let forged: String = forged.into_iter().collect();
            let opened = Sealed::parse(&forged).filter(|sealed| sealed.secret == secret.id);
            assert!(opened.and_then(|sealed| sealed.open(&secret, alice)).is_none(), "{at}");
        }
        for text in ["", "AAAA", "not base64!"] {
            assert!(open(text, alice).is_none(), "{text}");
        }
    }
}
