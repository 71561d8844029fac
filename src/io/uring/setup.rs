//! How a ring is set up: with all that the driver needs and nothing else.

#![allow(unsafe_code)]

use std::io;

use io_uring::register::Restriction;
use io_uring::{IoUring, Probe, Submitter, opcode, squeue};
use nix::errno::Errno;
use nix::libc::{self, iovec};

use super::registered::REGISTERED_CHUNKS_MAX;
use crate::io::socket::to_errno;
use crate::values::limits::REQUESTS_QUEUED_MAX;

/// Memory of a ring without its headers: requests and completions.
pub const RING_BYTES_MIN: u64 = 64 * REQUESTS_QUEUED_MAX as u64 + 16 * COMPLETIONS_QUEUED_MAX as u64;

/// Entries of the completion queue. Further completions wait in the kernel.
const COMPLETIONS_QUEUED_MAX: u32 = 4096;

/// io_uring_register(2).
const REGISTER_BUFFERS2: u8 = 15;
const REGISTER_BUFFERS_UPDATE: u8 = 16;
const REGISTER_RING_FDS: u8 = 20;

/// Sets up a ring, if the kernel knows all operations. It is disabled until it is [restricted](restrict) and enabled.
///
/// # Errors
/// `EOPNOTSUPP` if the kernel does not know all operations; those of io_uring_setup(2) and io_uring_register(2).
pub fn build() -> nix::Result<IoUring> {
    let ring = set_up().map_err(|error| to_errno(&error))?;
    let mut known = Probe::new();
    ring.submitter().register_probe(&mut known).map_err(|error| to_errno(&error))?;
    let needed = [
        opcode::RecvMulti::CODE,
        opcode::Send::CODE,
        opcode::SendMsg::CODE,
        opcode::PollAdd::CODE,
        opcode::AsyncCancel2::CODE,
        // As old as multishot receives (Linux 6.0), which cannot be probed for.
        opcode::SendZc::CODE,
    ];
    let knows_all = needed.into_iter().all(|code| known.is_supported(code));
    if knows_all { Ok(ring) } else { Err(Errno::EOPNOTSUPP) }
}

/// Restricts a disabled ring to the requests that this driver makes.
///
/// # Errors
/// Those of io_uring_register(2).
pub fn restrict(submitter: &Submitter<'_>) -> nix::Result<()> {
    let operations = [
        opcode::AsyncCancel2::CODE,
        opcode::PollAdd::CODE,
        opcode::Recv::CODE,
        opcode::RecvMsg::CODE,
        opcode::Send::CODE,
        opcode::SendMsg::CODE,
        opcode::SendZc::CODE,
        opcode::Write::CODE,
    ];
    let mut allowed: Vec<Restriction> = operations.map(Restriction::sqe_op).into();
    allowed.extend(
        [REGISTER_BUFFERS2, REGISTER_BUFFERS_UPDATE, REGISTER_RING_FDS].map(Restriction::register_op),
    );
    allowed.push(Restriction::sqe_flags_allowed(squeue::Flags::BUFFER_SELECT.bits()));
    submitter.register_restrictions(&mut allowed).map_err(|error| to_errno(&error))
}

/// Enables a ring. From now on only this thread uses it.
///
/// # Errors
/// Those of io_uring_register(2).
pub fn enable(submitter: &mut Submitter<'_>) -> nix::Result<()> {
    submitter.register_enable_rings().map_err(|error| to_errno(&error))?;
    // Saves a look-up of the descriptor in each call.
    submitter.register_ring_fd().map_err(|error| to_errno(&error))
}

/// Registers memory as the buffer with this number. The first call makes the table of buffers.
///
/// # Errors
/// Those of io_uring_register(2).
///
/// # Safety
/// The memory must stay mapped, with its present pages, for the life of the process.
pub unsafe fn register_buffer(
    submitter: &Submitter<'_>,
    has_table: &mut bool,
    number: u16,
    memory: iovec,
) -> nix::Result<()> {
    if !*has_table {
        let count = u32::from(REGISTERED_CHUNKS_MAX);
        submitter.register_buffers_sparse(count).map_err(|error| to_errno(&error))?;
        *has_table = true;
    }
    // SAFETY: the caller keeps the memory mapped.
    unsafe { submitter.register_buffers_update(number.into(), &[memory], None) }
        .map_err(|error| to_errno(&error))
}

/// Sets up a ring that only one thread uses: the one that enables it. The kernel processes completions when the thread asks for
/// them and never interrupts it. Linux 6.0 does not know `DEFER_TASKRUN`; with `COOP_TASKRUN` it does not interrupt the thread
/// either.
fn set_up() -> io::Result<IoUring> {
    let build = |defers: bool| {
        let mut builder = IoUring::builder();
        builder.dontfork().setup_clamp().setup_submit_all().setup_cqsize(COMPLETIONS_QUEUED_MAX);
        builder.setup_r_disabled();
        builder.setup_single_issuer().setup_taskrun_flag();
        if defers {
            builder.setup_defer_taskrun()
        } else {
            builder.setup_coop_taskrun()
        };
        builder.build(REQUESTS_QUEUED_MAX)
    };
    build(true).or_else(|error| match error.raw_os_error() {
        Some(libc::EINVAL) => build(false),
        _ => Err(error),
    })
}
