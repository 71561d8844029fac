//! Replies among the bytes of a connection.

/// A whole reply.
pub struct Reply<'a> {
    /// Without its CR LF.
    pub line: &'a str,
    /// Without the two bytes that end it.
    pub data: Option<&'a [u8]>,
    /// The length of all.
    pub bytes: usize,
}

/// Returns the reply at the beginning, if it is complete.
pub fn first(bytes: &[u8]) -> Option<Reply<'_>> {
    let end = bytes.windows(2).position(|pair| pair == b"\r\n")?;
    let line = str::from_utf8(&bytes[..end]).expect("the line of a reply is text");
    let words: Vec<&str> = line.split(' ').collect();
    let length = match words[..] {
        ["OK", length] | ["FOUND" | "RESERVED", _, length] => length.parse::<usize>().ok(),
        _ => None,
    };
    let Some(length) = length else { return Some(Reply { line, data: None, bytes: end + 2 }) };
    let data = bytes.get(end + 2..end + 2 + length + 2)?;
    Some(Reply { line, data: Some(&data[..length]), bytes: end + 2 + length + 2 })
}
