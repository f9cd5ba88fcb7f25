//! The calls of MPI that are used here. Invariant: errors are returned as values and never end the
//! process; and the starter of a transfer keeps its bytes in place until it has ended.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;

use mpi::ffi;
use thiserror::Error;

use crate::transport::{Awaiting, Lent};

/// The error of a failed call of MPI.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{call}: {says}")]
pub struct MpiError {
    call: &'static str,
    says: String,
}

type Answer<T> = Result<T, MpiError>;

/// Most bytes of one transfer: MPI counts them as `int`.
pub const MOST: usize = 1 << 30;

fn ask(call: &'static str, code: c_int) -> Answer<()> {
    // MPI_SUCCESS is 0 by the standard.
    if code == 0 {
        return Ok(());
    }
    let mut text = vec![0u8; ffi::MPI_MAX_ERROR_STRING as usize];
    let mut length = 0;
    // SAFETY: the text is as long as the library requires.
    unsafe { ffi::MPI_Error_string(code, text.as_mut_ptr().cast(), &mut length) };
    text.truncate(usize::try_from(length).unwrap_or(0));
    Err(MpiError { call, says: String::from_utf8_lossy(&text).into_owned() })
}

/// MPI, from its beginning to its end, in the thread that began it.
pub struct Library(());

impl Library {
    /// Begins; once in the life of a process.
    pub fn begin() -> Answer<Library> {
        let (mut is_begun, mut provided) = (0, 0);
        // SAFETY: both calls get pointers to numbers on this stack, or none.
        unsafe {
            ask("MPI_Initialized", ffi::MPI_Initialized(&mut is_begun))?;
            if is_begun != 0 {
                let says = "MPI was begun before in this process".to_string();
                return Err(MpiError { call: "MPI_Init_thread", says });
            }
            let (none, wanted) = (std::ptr::null_mut(), ffi::RSMPI_THREAD_FUNNELED);
            ask(
                "MPI_Init_thread",
                ffi::MPI_Init_thread(none, std::ptr::null_mut(), wanted, &mut provided),
            )?;
            if provided < wanted {
                let says = "this MPI does not go with threads".to_string();
                return Err(MpiError { call: "MPI_Init_thread", says });
            }
            // Communicators made from it inherit the handler.
            let world = ffi::RSMPI_COMM_WORLD;
            ask(
                "MPI_Comm_set_errhandler",
                ffi::MPI_Comm_set_errhandler(world, ffi::RSMPI_ERRORS_RETURN),
            )?;
        }
        Ok(Library(()))
    }

    /// All ranks of the job.
    pub fn world(&self) -> Group {
        // SAFETY: a constant of the library, which has begun.
        Group(unsafe { ffi::RSMPI_COMM_WORLD })
    }

    /// Ends, together with all other ranks.
    pub fn end(self) {
        // SAFETY: this process waits for no transfer any more.
        unsafe { ffi::MPI_Finalize() };
    }
}

/// Ranks that communicate with each other, and receive no messages of other groups.
#[derive(Clone, Copy)]
pub struct Group(ffi::MPI_Comm);

impl Group {
    /// This rank.
    pub fn rank(self) -> Answer<u32> {
        let mut rank = 0;
        // SAFETY: fills a number on this stack.
        ask("MPI_Comm_rank", unsafe { ffi::MPI_Comm_rank(self.0, &mut rank) })?;
        Ok(rank.cast_unsigned())
    }

    /// The number of ranks.
    pub fn size(self) -> Answer<u32> {
        let mut size = 0;
        // SAFETY: fills a number on this stack.
        ask("MPI_Comm_size", unsafe { ffi::MPI_Comm_size(self.0, &mut size) })?;
        Ok(size.cast_unsigned())
    }

    /// The same ranks, with messages of their own; all of them must call this.
    pub fn again(self) -> Answer<Group> {
        let mut made = Group::nobody();
        // SAFETY: fills a handle on this stack.
        ask("MPI_Comm_dup", unsafe { ffi::MPI_Comm_dup(self.0, &mut made.0) })?;
        Ok(made)
    }

    /// The ranks that pass true; `None` if this one does not. All ranks must call this.
    pub fn those(self, is_one: bool) -> Answer<Option<Group>> {
        let mut made = Group::nobody();
        // SAFETY: fills a handle on this stack.
        let code = unsafe {
            let colour = if is_one { 0 } else { ffi::RSMPI_UNDEFINED };
            ffi::MPI_Comm_split(self.0, colour, 0, &mut made.0)
        };
        ask("MPI_Comm_split", code)?;
        Ok(is_one.then_some(made))
    }

    /// The first rank on the same computer; all ranks must call this.
    pub fn first_nearby(self) -> Answer<u32> {
        let mut nearby = Group::nobody();
        let mut first = self.rank()?.cast_signed();
        // SAFETY: the calls fill a handle and a number on this stack.
        unsafe {
            let (kind, none) = (ffi::RSMPI_COMM_TYPE_SHARED, ffi::RSMPI_INFO_NULL);
            let code = ffi::MPI_Comm_split_type(self.0, kind, 0, none, &mut nearby.0);
            ask("MPI_Comm_split_type", code)?;
            let place = (&raw mut first).cast::<c_void>();
            let code = ffi::MPI_Bcast(place, 1, ffi::RSMPI_INT32_T, 0, nearby.0);
            ask("MPI_Bcast", code)?;
            ask("MPI_Comm_free", ffi::MPI_Comm_free(&mut nearby.0))?;
        }
        Ok(first.cast_unsigned())
    }

    /// The largest tag of a message.
    pub fn most_tags(self) -> Answer<u32> {
        let mut place: *mut c_int = std::ptr::null_mut();
        let mut is_there = 0;
        // SAFETY: fills a pointer on this stack; the number that it leads to is the library's.
        let most = unsafe {
            let place = (&raw mut place).cast::<c_void>();
            let key = ffi::MPI_TAG_UB.cast_signed();
            ask("MPI_Comm_get_attr", ffi::MPI_Comm_get_attr(self.0, key, place, &mut is_there))?;
            let place = *place.cast::<*const c_int>();
            // The standard guarantees this many.
            if is_there == 0 || place.is_null() { 32_767 } else { *place }
        };
        Ok(most.cast_unsigned())
    }

    /// Begins to send bytes, at most [`MOST`].
    pub fn send(self, bytes: Lent, to: u32, tag: u32) -> Answer<Request> {
        self.begin("MPI_Isend", |request| {
            let (to, tag) = (to.cast_signed(), tag.cast_signed());
            // SAFETY: the lender of the bytes leaves them as they are until the request has ended.
            unsafe {
                let (first, kind) = (bytes.bytes.cast(), ffi::RSMPI_UINT8_T);
                ffi::MPI_Isend(first, bytes.length as c_int, kind, to, tag, self.0, request)
            }
        })
    }

    /// The same, but the request ends no earlier than a receiver has begun to receive.
    pub fn hand_over(self, bytes: Lent, to: u32, tag: u32) -> Answer<Request> {
        self.begin("MPI_Issend", |request| {
            let (to, tag) = (to.cast_signed(), tag.cast_signed());
            // SAFETY: the lender of the bytes leaves them as they are until the request has ended.
            unsafe {
                let (first, kind) = (bytes.bytes.cast(), ffi::RSMPI_UINT8_T);
                ffi::MPI_Issend(first, bytes.length as c_int, kind, to, tag, self.0, request)
            }
        })
    }

    /// Begins to receive bytes, at most [`MOST`], from one rank, or from any.
    pub fn receive(self, into: Awaiting, from: Option<u32>, tag: u32) -> Answer<Request> {
        self.begin("MPI_Irecv", |request| {
            // SAFETY: no other code touches the bytes until the request has ended.
            unsafe {
                let from = from.map_or(ffi::RSMPI_ANY_SOURCE, u32::cast_signed);
                let (first, kind, tag) = (into.bytes.cast(), ffi::RSMPI_UINT8_T, tag.cast_signed());
                ffi::MPI_Irecv(first, into.length as c_int, kind, from, tag, self.0, request)
            }
        })
    }

    /// Begins to collect the same number of bytes from each rank; all of them must call this.
    pub fn gather(self, own: Lent, all: Awaiting) -> Answer<Request> {
        self.begin("MPI_Iallgather", |request| {
            // SAFETY: both pieces stay as they are until the request has ended.
            unsafe {
                let (count, kind) = (own.length as c_int, ffi::RSMPI_UINT8_T);
                let (own, all) = (own.bytes.cast(), all.bytes.cast());
                ffi::MPI_Iallgather(own, count, kind, all, count, kind, self.0, request)
            }
        })
    }

    /// A request that ends when all ranks have called this.
    pub fn everybody(self) -> Answer<Request> {
        // SAFETY: there are no bytes.
        self.begin("MPI_Ibarrier", |request| unsafe { ffi::MPI_Ibarrier(self.0, request) })
    }

    /// Ends the processes of all ranks at once.
    pub fn abort(self, code: u8) -> ! {
        // SAFETY: any thread may abort the job.
        unsafe { ffi::MPI_Abort(self.0, c_int::from(code)) };
        std::process::exit(code.into())
    }

    fn nobody() -> Group {
        // SAFETY: a constant of the library.
        Group(unsafe { ffi::RSMPI_COMM_NULL })
    }

    fn begin(
        self,
        call: &'static str,
        begin: impl FnOnce(&mut ffi::MPI_Request) -> c_int,
    ) -> Answer<Request> {
        // SAFETY: a constant of the library.
        let mut request = Request(unsafe { ffi::RSMPI_REQUEST_NULL });
        ask(call, begin(&mut request.0))?;
        Ok(request)
    }
}

/// A transfer under way.
pub struct Request(ffi::MPI_Request);

impl Request {
    /// Whether it has ended; if so, the number of bytes received, if it receives.
    pub fn ended(&mut self) -> Answer<Option<usize>> {
        let (mut has_ended, mut count) = (0, 0);
        let mut status = MaybeUninit::<ffi::MPI_Status>::zeroed();
        // SAFETY: the calls fill numbers and a status on this stack.
        unsafe {
            ask("MPI_Test", ffi::MPI_Test(&mut self.0, &mut has_ended, status.as_mut_ptr()))?;
            if has_ended == 0 {
                return Ok(None);
            }
            ffi::MPI_Get_count(status.as_ptr(), ffi::RSMPI_UINT8_T, &mut count);
        }
        Ok(Some(usize::try_from(count).unwrap_or(0)))
    }

    /// Cancels it, if nothing has arrived yet.
    pub fn cancel(&mut self) -> Answer<()> {
        // SAFETY: a request that this process began.
        ask("MPI_Cancel", unsafe { ffi::MPI_Cancel(&mut self.0) })
    }
}
