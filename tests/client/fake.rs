//! Servers that are none: they send what a test has them send.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

/// Runs `each` for each connection until the test ends. Returns the address.
pub fn serve(each: impl Fn(TcpStream) + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = listener.local_addr().expect("it is bound").to_string();
    let each = Arc::new(each);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let each = Arc::clone(&each);
            thread::spawn(move || each(stream));
        }
    });
    address
}

/// Replies to each line, by a function for each connection.
pub fn replies<R: FnMut(&str) -> Vec<u8>>(begin: impl Fn() -> R + Send + Sync + 'static) -> String {
    serve(move |stream| {
        let mut reply = begin();
        for line in BufReader::new(&stream).split(b'\n').map_while(Result::ok) {
            // The client may have closed the connection.
            if (&stream).write_all(&reply(String::from_utf8_lossy(&line).trim_end())).is_err() {
                return;
            }
        }
    })
}

/// Replies to the first lines of each connection in turn, and to nothing after them.
pub fn scripted(script: &'static [&'static str]) -> String {
    replies(move || {
        let mut script = script.iter();
        move |_| script.next().copied().unwrap_or_default().into()
    })
}

/// Sends these bytes after the first line, and closes the connection.
pub fn impostor(bytes: &'static [u8]) -> String {
    serve(move |mut stream| {
        let mut lines = BufReader::new(stream.try_clone().expect("a descriptor"));
        let _ = lines.read_until(b'\n', &mut Vec::new()).and_then(|_| stream.write_all(bytes));
    })
}

/// Returns a reply with data.
pub fn data(word: &str, data: &[u8]) -> Vec<u8> {
    [format!("{word} {}\r\n", data.len()).as_bytes(), data, b"\r\n"].concat()
}
