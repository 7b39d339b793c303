//! AMQP 0-9-1 frames out of a stream of bytes, and into it. The grammar is lapin's own.

use amq_protocol::frame::{AMQPFrame, WriteContext, gen_frame, parse_frame};

/// What a stream holds.
#[derive(Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "nearly all are frames")]
pub(crate) enum Piece {
    Frame(AMQPFrame),
    /// A whole frame that does not follow the grammar.
    Malformed(Vec<u8>),
}

/// Cuts a stream into frames, however its bytes arrive.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    bytes: Vec<u8>,
}

impl Frames {
    /// Takes the next bytes and gives the frames that they complete.
    pub(crate) fn take(&mut self, bytes: &[u8]) -> Vec<Piece> {
        self.bytes.extend_from_slice(bytes);
        let mut pieces = Vec::new();
        let mut start = 0;
        while let Some(length) = frame_length(&self.bytes[start..]) {
            let frame = &self.bytes[start..start + length];
            pieces.push(match parse_frame(frame) {
                Ok(([], parsed)) => Piece::Frame(parsed),
                _ => Piece::Malformed(frame.to_vec()),
            });
            start += length;
        }
        self.bytes.drain(..start);
        pieces
    }
}

/// The length of the first frame, once all of it is there.
fn frame_length(bytes: &[u8]) -> Option<usize> {
    let length = match *bytes.first()? {
        b'A' => 8, // the protocol header
        _ => {
            let size: [u8; 4] = bytes.get(3..7)?.try_into().ok()?;
            7 + u32::from_be_bytes(size) as usize + 1
        }
    };
    (bytes.len() >= length).then_some(length)
}

/// The bytes of a frame.
pub(crate) fn encode(frame: &AMQPFrame) -> Vec<u8> {
    gen_frame(frame)(WriteContext::from(Vec::new()))
        .expect("memory takes every frame")
        .write
}
