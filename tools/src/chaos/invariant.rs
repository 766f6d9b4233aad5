//! Guarantees that a run checks.

/// Guarantee of the server that a run checks repeatedly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Invariant {
    Responses,
    Evidence,
    Changes,
    Acknowledged,
    Damage,
    Laundering,
    FullDisk,
    Probes,
    Oversized,
    Accounting,
    Processes,
    Idle,
}

impl Invariant {
    /// All guarantees, in the order of the report.
    pub(crate) const ALL: [Invariant; 12] = [
        Invariant::Responses,
        Invariant::Evidence,
        Invariant::Changes,
        Invariant::Acknowledged,
        Invariant::Damage,
        Invariant::Laundering,
        Invariant::FullDisk,
        Invariant::Probes,
        Invariant::Oversized,
        Invariant::Accounting,
        Invariant::Processes,
        Invariant::Idle,
    ];

    /// Statement of the guarantee.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Invariant::Responses => "each response is whole and right, or ends with an error that the client is sent",
            Invariant::Evidence => "no poisoned passage acts, poses as another source or hides text",
            Invariant::Changes => "changes of documents and policies succeed, or fail for a reason at hand",
            Invariant::Acknowledged => {
                "an acknowledged write is there after SIGKILL, SIGTERM, a full disk and a repair"
            }
            Invariant::Damage => "`/ready` names the file and block of a flipped bit, and a copy repairs it",
            Invariant::Laundering => "nothing made from a damaged file is published",
            Invariant::FullDisk => {
                "a full disk fails changes and nothing else, and they succeed when it has room again"
            }
            Invariant::Probes => "`/health` answers within 5 s, whatever connections clients hold",
            Invariant::Oversized => "bodies and heads that are too large are refused",
            Invariant::Accounting => "free, cached and used KV blocks add up",
            Invariant::Processes => "each process starts, and ends only by a signal and within its deadline",
            Invariant::Idle => "after the load the server holds no session, block, request or replaced adapter",
        }
    }
}
