//! A durable write of the job log, made by requests on a ring. The kernel may do less than a request asks for.

use std::io;

use nix::errno::Errno;

use super::socket::to_errno;
use crate::wal::batch::BLOCK_BYTES;

/// Where the next request begins after this many bytes: direct I/O writes whole blocks.
pub const fn block_of(written: usize) -> usize {
    written - written % BLOCK_BYTES
}

/// Returns how much is written after one more request.
///
/// # Errors
/// That of the request, or `WriteZero` if it has written nothing more.
pub fn advance(written: usize, result: io::Result<usize>) -> io::Result<usize> {
    match result {
        Ok(bytes) if block_of(written) + bytes > written => Ok(block_of(written) + bytes),
        Ok(_) => Err(io::ErrorKind::WriteZero.into()),
        Err(error) if matches!(to_errno(&error), Errno::EINTR | Errno::EAGAIN) => Ok(written),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;

    use super::*;

    #[test]
    fn a_short_write_continues_at_the_last_whole_block() {
        let check = |written, result: Result<usize, Errno>, expect| {
            let end = advance(written, result.map_err(Into::into)).map_err(|error| error.kind());
            assert_eq!(end, expect, "{written} bytes, then {result:?}");
        };
        check(0, Ok(8192), Ok(8192));
        check(0, Ok(5000), Ok(5000));
        check(5000, Ok(4096), Ok(8192));
        check(5000, Ok(904), Err(ErrorKind::WriteZero));
        check(8192, Ok(0), Err(ErrorKind::WriteZero));
        check(5000, Err(Errno::EINTR), Ok(5000));
        check(0, Err(Errno::ENOSPC), Err(ErrorKind::StorageFull));
    }
}
