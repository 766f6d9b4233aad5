//! A reader of event streams after the HTML standard, section 9.2.6, that shares no code with the writer. It panics on
//! lines and messages that the standard ignores.

/// One message: its data, and its name if it has one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) name: Option<String>,
    pub(super) data: String,
}

/// The messages of a whole stream.
pub(super) fn read(bytes: &[u8]) -> Vec<Message> {
    let text = std::str::from_utf8(bytes).expect("a stream is UTF-8");
    assert!(text.is_empty() || text.ends_with("\n\n"), "a stream that breaks off inside a message: {text:?}");
    assert!(!text.contains('\r') && !text.starts_with('\u{feff}'), "line ends that readers take differently");
    text.split_terminator("\n\n").filter_map(message).collect()
}

fn message(block: &str) -> Option<Message> {
    let (mut name, mut data) = (None, None);
    for line in block.split('\n') {
        let (field, value) = line.split_once(':').unwrap_or_else(|| panic!("no field in {line:?}"));
        let value = value.strip_prefix(' ').unwrap_or(value).to_owned();
        match field {
            "" => {}
            "event" => assert_eq!(name.replace(value), None, "two names in {block:?}"),
            "data" => assert_eq!(data.replace(value), None, "two lines of data in {block:?}"),
            "id" | "retry" => {}
            _ => panic!("the unknown field {field:?} in {block:?}"),
        }
    }
    assert!(data.is_some() || name.is_none(), "a name without data, which readers drop: {block:?}");
    Some(Message { name, data: data? })
}
