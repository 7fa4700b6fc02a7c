//! Every operation, by both interfaces: what it does to memory, and what completes how.

use crate::common::*;
use rdma_sys::*;
use softverbs::exports::cm::rdma_create_qp_ex;
use softverbs::exports::memory::{ibv_dereg_mr, ibv_reg_mr};
use softverbs::exports::qp::ibv_qp_to_qp_ex;
use std::fs::{self, File};
use std::io::Read;
use std::time::{Duration, Instant};

/// Around what is copied, cut and buffered anywhere on the way.
const SIZES: [usize; 14] = [
    0,
    1,
    8,
    1023,
    1024,
    1025,
    4095,
    4096,
    4097,
    65_536,
    262_143,
    262_144,
    262_145,
    1 << 20,
];
const LARGE: usize = 33 << 20;
/// Memory around what is written to, which has to stay as it is.
const MARGIN: usize = 64;

const SEND: ibv_wc_opcode::Type = ibv_wc_opcode::IBV_WC_SEND;
const WRITE: ibv_wc_opcode::Type = ibv_wc_opcode::IBV_WC_RDMA_WRITE;
const READ: ibv_wc_opcode::Type = ibv_wc_opcode::IBV_WC_RDMA_READ;
const RECV: ibv_wc_opcode::Type = ibv_wc_opcode::IBV_WC_RECV;
const RECV_IMM: ibv_wc_opcode::Type = ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM;

/// Cuts a range of memory into pieces of odd lengths, some of them empty.
fn split(memory: &Memory, at: usize, len: usize, pieces: usize) -> Vec<ibv_sge> {
    let mut sges = vec![];
    let mut done = 0;
    for i in 0..pieces {
        let left = len - done;
        let piece = match i {
            _ if i + 1 == pieces => left,
            _ if i % 3 == 1 => 0,
            _ => ((left / (pieces - i)) | 1).min(left),
        };
        sges.push(memory.sge(at + done, piece));
        done += piece;
    }
    sges
}

#[test]
fn the_pieces_are_all() {
    let pair = Pair::new();
    let memory = pair.client.memory(5000, LOCAL);
    for pieces in 1..=32 {
        let sges = split(&memory, 3, 4990, pieces);
        let len: u32 = sges.iter().map(|sge| sge.length).sum();
        assert_eq!((sges.len(), len), (pieces, 4990));
    }
}

/// Has the client write so much, and checks what is there then.
fn write(pair: &Pair, how: Interface, len: usize, imm: Option<u32>) {
    let from = pair.client.memory(len + 1, LOCAL);
    let to = pair.server.memory(len + 2 * MARGIN, LOCAL | REMOTE_WRITE);
    let data = pattern(len as u64, len);
    from.write(1, &data);
    to.fill(0xee);
    let at = to.at(MARGIN);
    let sges = vec![from.sge(1, len)];
    let op = match imm {
        Some(imm) => {
            pair.server.recv(7, vec![]);
            Op::WriteImm(at, imm)
        }
        None => Op::Write(at),
    };
    pair.client.post_by(how, &[Wr::new(len as u64, op, sges)]);
    let wc = pair.client.send_cq.expect(len as u64, SUCCESS);
    assert_eq!(wc.opcode, WRITE, "{how:?}, {len} bytes: the opcode");
    assert_eq!(wc.qp, c!((*pair.client.qp()).qp_num), "the queue pair");
    if imm.is_some() {
        let wc = pair.server.recv_cq.expect(7, SUCCESS);
        let seen = (wc.opcode, wc.len, wc.imm);
        assert_eq!(seen, (RECV_IMM, len as u32, imm), "{how:?}, {len} bytes");
    }
    let what = format!("{how:?}, {len} bytes written");
    same(&what, &to.read(MARGIN, len), &data);
    same(&what, &to.read(0, MARGIN), &[0xee; MARGIN]);
    same(&what, &to.read(MARGIN + len, MARGIN), &[0xee; MARGIN]);
}

#[test]
fn writes_of_all_sizes() {
    let pair = Pair::new();
    for how in BOTH {
        for len in SIZES {
            write(&pair, how, len, None);
        }
    }
    write(&pair, Interface::List, LARGE, None);
}

#[test]
fn writes_with_immediate_data_of_all_sizes() {
    let pair = Pair::new();
    for how in BOTH {
        for len in SIZES {
            write(&pair, how, len, Some(0x1234_5678 ^ len as u32));
        }
    }
    write(&pair, Interface::List, LARGE, Some(0));
}

fn read(pair: &Pair, how: Interface, len: usize) {
    let to = pair.client.memory(len + 2 * MARGIN, LOCAL);
    let from = pair.server.memory(len + 1, REMOTE_READ);
    let data = pattern(!len as u64, len);
    from.write(1, &data);
    to.fill(0xee);
    let sges = vec![to.sge(MARGIN, len)];
    pair.client
        .post_by(how, &[Wr::new(len as u64, Op::Read(from.at(1)), sges)]);
    let wc = pair.client.send_cq.expect(len as u64, SUCCESS);
    assert_eq!(
        (wc.opcode, wc.len),
        (READ, len as u32),
        "{how:?}: opcode and length"
    );
    let what = format!("{how:?}, {len} bytes read");
    same(&what, &to.read(MARGIN, len), &data);
    same(&what, &to.read(0, MARGIN), &[0xee; MARGIN]);
    same(&what, &to.read(MARGIN + len, MARGIN), &[0xee; MARGIN]);
}

#[test]
fn reads_of_all_sizes() {
    let pair = Pair::new();
    for how in BOTH {
        for len in SIZES {
            read(&pair, how, len);
        }
    }
    read(&pair, Interface::List, LARGE);
}

fn send(pair: &Pair, how: Interface, len: usize, imm: Option<u32>) {
    let from = pair.client.memory(len + 1, LOCAL);
    let to = pair.server.memory(len + 2 * MARGIN, LOCAL);
    let data = pattern(len as u64 + 7, len);
    from.write(1, &data);
    to.fill(0xee);
    // There is more room than the message needs.
    pair.server.recv(8, vec![to.sge(MARGIN, len + MARGIN)]);
    let op = imm.map_or(Op::Send, Op::SendImm);
    pair.client
        .post_by(how, &[Wr::new(len as u64, op, vec![from.sge(1, len)])]);
    let wc = pair.client.send_cq.expect(len as u64, SUCCESS);
    assert_eq!(wc.opcode, SEND, "{how:?}, {len} bytes: the opcode");
    let wc = pair.server.recv_cq.expect(8, SUCCESS);
    let seen = (wc.opcode, wc.len, wc.imm);
    assert_eq!(
        seen,
        (RECV, len as u32, imm),
        "{how:?}: opcode, length, immediate data"
    );
    let what = format!("{how:?}, {len} bytes sent");
    same(&what, &to.read(MARGIN, len), &data);
    same(&what, &to.read(0, MARGIN), &[0xee; MARGIN]);
    same(&what, &to.read(MARGIN + len, MARGIN), &[0xee; MARGIN]);
}

#[test]
fn sends_of_all_sizes() {
    let pair = Pair::new();
    for how in BOTH {
        for len in SIZES {
            send(&pair, how, len, None);
        }
    }
    send(&pair, Interface::List, LARGE, None);
}

#[test]
fn sends_with_immediate_data_of_all_sizes() {
    let pair = Pair::new();
    for how in BOTH {
        for len in SIZES {
            send(&pair, how, len, Some(len as u32 ^ 0xffff_0000));
        }
    }
    send(&pair, Interface::List, LARGE, Some(u32::MAX));
}

#[test]
fn the_server_asks_as_the_client_does() {
    let Pair { client, server } = Pair::new();
    let pair = Pair {
        client: server,
        server: client,
    };
    for how in BOTH {
        write(&pair, how, 5000, None);
        read(&pair, how, 5000);
        send(&pair, how, 5000, Some(5));
    }
}

#[test]
fn sends_through_a_shared_receive_queue() {
    let pair = Pair::with(|setup| setup.srq = Some(16));
    for len in SIZES {
        send(&pair, Interface::List, len, None);
        write(&pair, Interface::List, len, Some(9));
    }
}

#[test]
fn messages_of_many_pieces() {
    let pair = Pair::new();
    for len in [0, 1, 33, 1500, 9001, 300_001] {
        for (i, pieces) in [2, 3, 4, 5, 15, 16, 17, 31, 32].into_iter().enumerate() {
            let from = pair.client.memory(len + 8, LOCAL);
            let to = pair.server.memory(len + 8, ALL);
            let back = pair.client.memory(len + 8, LOCAL);
            let data = pattern((len * pieces) as u64, len);
            from.write(3, &data);
            let how = BOTH[i % 2];
            let what = format!("{how:?}, {len} bytes in {pieces} pieces");

            let gathered = split(&from, 3, len, pieces);
            pair.server.recv(1, split(&to, 5, len, 33 - pieces));
            pair.client
                .post_by(how, &[Wr::new(2, Op::Send, gathered.clone())]);
            pair.client.send_cq.expect(2, SUCCESS);
            pair.server.recv_cq.expect(1, SUCCESS);
            same(&format!("{what}, sent"), &to.read(5, len), &data);

            to.fill(0);
            pair.client
                .post_by(how, &[Wr::new(3, Op::Write(to.at(5)), gathered)]);
            pair.client.send_cq.expect(3, SUCCESS);
            same(&format!("{what}, written"), &to.read(5, len), &data);

            let scattered = split(&back, 1, len, pieces);
            pair.client
                .post_by(how, &[Wr::new(4, Op::Read(to.at(5)), scattered)]);
            pair.client.send_cq.expect(4, SUCCESS);
            same(&format!("{what}, read"), &back.read(1, len), &data);
        }
    }
}

#[test]
fn a_request_without_pieces_is_empty() {
    let pair = Pair::new();
    for how in BOTH {
        pair.server.recv(1, vec![]);
        let at = At { addr: 0, rkey: 0 };
        let requests = [
            Wr::new(2, Op::Send, vec![]),
            // No bytes need no right.
            Wr::new(3, Op::Write(at), vec![]),
            Wr::new(4, Op::Read(at), vec![]),
        ];
        pair.client.post_by(how, &requests);
        for id in 2..=4 {
            pair.client.send_cq.expect(id, SUCCESS);
        }
        assert_eq!(pair.server.recv_cq.expect(1, SUCCESS).len, 0);
    }
}

#[test]
fn inline_data_is_taken_when_it_is_posted() {
    let pair = Pair::new();
    let to = pair.server.memory(4096, ALL);
    for how in BOTH {
        for len in [0, 1, 7, 8, 64, 511, 512] {
            for pieces in [1, 2, 5] {
                // Not registered, and changed at once.
                let data = pattern(len as u64, len);
                let mut memory = data.clone();
                let mut sges = vec![];
                let mut done = 0;
                for i in 0..pieces {
                    let part = if i + 1 == pieces {
                        len - done
                    } else {
                        len / pieces
                    };
                    sges.push(ibv_sge {
                        addr: memory.as_mut_ptr() as u64 + done as u64,
                        length: part as u32,
                        lkey: 0xbad,
                    });
                    done += part;
                }
                to.fill(0);
                pair.server.recv(1, vec![to.sge(1024, 1024)]);
                let requests = [
                    Wr::new(2, Op::Write(to.at(8)), sges.clone()).with(INLINE),
                    Wr::new(3, Op::Send, sges).with(INLINE),
                ];
                pair.client.post_by(how, &requests);
                memory.fill(0xdd);
                pair.client.send_cq.expect(2, SUCCESS);
                pair.client.send_cq.expect(3, SUCCESS);
                let wc = pair.server.recv_cq.expect(1, SUCCESS);
                assert_eq!(wc.len as usize, len, "{how:?}: the length");
                let what = format!("{how:?}, {len} bytes inline in {pieces} pieces");
                same(&format!("{what}, written"), &to.read(8, len), &data);
                same(&format!("{what}, sent"), &to.read(1024, len), &data);
            }
        }
    }
}

#[test]
fn inline_data_is_for_requests_that_carry_some() {
    let pair = Pair::new();
    let (from, to) = (pair.client.memory(8, LOCAL), pair.server.memory(8, ALL));
    for op in [Op::Read(to.at(0)), Op::FetchAdd(to.at(0), 1)] {
        let wr = Wr::new(1, op, vec![from.sge(0, 8)]).with(INLINE);
        let refused = post_extended(pair.client.qp(), &[wr]);
        assert_eq!(refused, Err(libc::EINVAL), "{op:?}");
    }
    // None of it was posted.
    let wr = Wr::new(2, Op::Read(to.at(0)), vec![from.sge(0, 8)]);
    pair.client.post_by(Interface::Extended, &[wr]);
    pair.client.send_cq.expect(2, SUCCESS);
}

#[test]
fn an_iwarp_device_has_no_atomics() {
    alone(|| {
        // SAFETY: no other thread of this process reads or writes the environment now.
        unsafe { std::env::set_var("SOFTVERBS_TRANSPORT", "iwarp") };
        let pair = Pair::with(|setup| setup.extended = false);
        let (from, to) = (pair.client.memory(8, LOCAL), pair.server.memory(8, LOCAL));
        for op in [Op::FetchAdd(to.at(0), 1), Op::CompareSwap(to.at(0), 0, 1)] {
            let wr = Wr::new(1, op, vec![from.sge(0, 8)]);
            let refused = post_list(pair.client.qp(), &[wr]);
            assert_eq!(refused, Err((libc::EINVAL, 0)), "{op:?}");
        }
        // Nor is a queue pair made for them, or for other operations that the device lacks.
        for ops in [1 << 5, 1 << 6, WITH_FLUSH, WITH_ATOMIC_WRITE] {
            let channel = new_channel();
            let id = Id::new(&channel);
            good("rdma_bind_addr", id.bind(&LOOPBACK));
            let cq = Cq::new(c!((*id.0).verbs), 4, None);
            let mut attr: ibv_qp_init_attr_ex = c!(std::mem::zeroed());
            (attr.send_cq, attr.recv_cq) = (cq.0, cq.0);
            attr.qp_type = ibv_qp_type::IBV_QPT_RC;
            attr.comp_mask = ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS.0;
            attr.send_ops_flags = ops;
            let result = c!(rdma_create_qp_ex(id.0, &mut attr));
            fails("rdma_create_qp_ex", result, libc::EOPNOTSUPP);
        }
    });
}

#[test]
fn more_inline_data_than_there_is_room_for_is_refused() {
    inline_room_is_32(|cap| (cap.max_send_sge, cap.max_inline_data) = (1, 32));
}

/// As devices have it that keep the data where the list of pieces would be.
#[test]
fn there_is_room_for_inline_data_instead_of_the_pieces() {
    inline_room_is_32(|cap| (cap.max_send_sge, cap.max_inline_data) = (2, 0));
}

fn inline_room_is_32(ask: impl Fn(&mut ibv_qp_cap)) {
    let pair = Pair::with(|setup| ask(&mut setup.cap));
    let to = pair.server.memory(64, ALL);
    let from = pair.client.memory(64, LOCAL);
    let request = |id, len| Wr::new(id, Op::Write(to.at(0)), vec![from.sge(0, len)]).with(INLINE);
    let list = [request(1, 32), request(2, 33), request(3, 8)];
    assert_eq!(post_list(pair.client.qp(), &list), Err((libc::EINVAL, 1)));
    pair.client.send_cq.expect(1, SUCCESS);
    assert_eq!(post_extended(pair.client.qp(), &list), Err(libc::EINVAL));
    // And so none of the three was posted.
    pair.client.post_by(Interface::Extended, &[request(4, 32)]);
    pair.client.send_cq.expect(4, SUCCESS);
    assert!(pair.client.send_cq.is_empty());
}

#[test]
fn inline_data_of_many_requests_is_kept_apart() {
    // Not a power of two, so that the slots for the data come round at different places.
    let pair = Pair::with(|setup| (setup.cap.max_send_wr, setup.cap.max_inline_data) = (7, 100));
    let to = pair.server.memory(700, ALL);
    for round in 0..200u64 {
        let mut rows: Vec<Vec<u8>> = (0..7).map(|i| pattern(round * 7 + i, 100)).collect();
        let requests: Vec<Wr> = (0..7)
            .map(|i| {
                let sge = ibv_sge {
                    addr: rows[i].as_ptr() as u64,
                    length: 100,
                    lkey: 0,
                };
                let wr = Wr::new(i as u64, Op::Write(to.at(100 * i)), vec![sge]).with(INLINE);
                if i < 6 { wr.unsignaled() } else { wr }
            })
            .collect();
        pair.client.post_by(BOTH[round as usize % 2], &requests);
        let expected = rows.concat();
        rows.iter_mut().for_each(|row| row.fill(0));
        pair.client.send_cq.expect(6, SUCCESS);
        same(&format!("round {round}"), &to.read(0, 700), &expected);
    }
}

#[test]
fn fetch_and_add_gives_what_was_there() {
    let pair = Pair::new();
    let target = pair.server.memory(64, ALL);
    let result = pair.client.memory(64, LOCAL);
    for how in BOTH {
        target.write(8, &(u64::MAX - 1).to_ne_bytes());
        for (add, before) in [(1, u64::MAX - 1), (3, u64::MAX), (0, 2)] {
            let wr = Wr::new(1, Op::FetchAdd(target.at(8), add), vec![result.sge(16, 8)]);
            pair.client.post_by(how, &[wr]);
            let wc = pair.client.send_cq.expect(1, SUCCESS);
            assert_eq!((wc.opcode, wc.len), (ibv_wc_opcode::IBV_WC_FETCH_ADD, 8));
            assert_eq!(result.word(16), before, "{how:?}: what was there");
        }
        assert_eq!(target.word(8), 2, "{how:?}: what is there");
        assert_eq!(
            (target.word(0), target.word(16)),
            (0, 0),
            "{how:?}: beside it"
        );
    }
}

#[test]
fn compare_and_swap_swaps_only_what_is_equal() {
    let pair = Pair::new();
    let target = pair.server.memory(64, ALL);
    let result = pair.client.memory(64, LOCAL);
    for how in BOTH {
        target.write(24, &5u64.to_ne_bytes());
        for (compare, swap, before, after) in [(4, 9, 5, 5), (5, 9, 5, 9), (9, 0, 9, 0)] {
            let op = Op::CompareSwap(target.at(24), compare, swap);
            pair.client
                .post_by(how, &[Wr::new(1, op, vec![result.sge(0, 8)])]);
            let wc = pair.client.send_cq.expect(1, SUCCESS);
            assert_eq!((wc.opcode, wc.len), (ibv_wc_opcode::IBV_WC_COMP_SWAP, 8));
            assert_eq!(result.word(0), before, "{how:?}: what was there");
            assert_eq!(target.word(24), after, "{how:?}: what is there");
        }
    }
}

#[test]
fn the_result_of_an_atomic_may_be_in_pieces() {
    let pair = Pair::new();
    let target = pair.server.memory(8, ALL);
    let result = pair.client.memory(64, LOCAL);
    target.write(0, &0x0102_0304_0506_0708u64.to_ne_bytes());
    let sges = vec![result.sge(1, 3), result.sge(0, 0), result.sge(21, 5)];
    pair.client
        .post(Wr::new(1, Op::FetchAdd(target.at(0), 1), sges));
    pair.client.send_cq.expect(1, SUCCESS);
    let seen = [result.read(1, 3), result.read(21, 5)].concat();
    same("the result", &seen, &0x0102_0304_0506_0708u64.to_ne_bytes());
}

#[test]
fn atomics_of_many_are_added_up() {
    const EACH: u64 = 500;
    let setup = Setup::default();
    let listener = Listener::new();
    let pairs: Vec<(End, End)> = (0..4)
        .map(|_| {
            let client = begin(&listener.address, &setup);
            let server = listener.accept(&setup);
            client.channel.expect(RDMA_CM_EVENT_ESTABLISHED);
            server.channel.expect(RDMA_CM_EVENT_ESTABLISHED);
            (client, server)
        })
        .collect();
    // One word, registered with the domain of each.
    let targets: Vec<Memory> = pairs
        .iter()
        .map(|(_, server)| server.memory(8, ALL))
        .collect();
    let word = targets[0].ptr();
    let access = ALL as i32;
    let mrs: Vec<Shared<*mut ibv_mr>> = pairs
        .iter()
        .map(|(_, server)| {
            let mr = c!(ibv_reg_mr(server.pd.0, word.cast(), 8, access));
            Shared(made("ibv_reg_mr", mr))
        })
        .collect();
    std::thread::scope(|scope| {
        for ((client, _), mr) in pairs.iter().zip(&mrs) {
            let at = At {
                addr: word as u64,
                rkey: c!((*mr.get()).rkey),
            };
            scope.spawn(move || {
                let result = client.memory(8, LOCAL);
                for i in 0..EACH {
                    client.post(Wr::new(i, Op::FetchAdd(at, 1), vec![result.sge(0, 8)]));
                    client.send_cq.expect(i, SUCCESS);
                }
            });
        }
    });
    assert_eq!(targets[0].word(0), 4 * EACH);
    for mr in mrs {
        good("ibv_dereg_mr", c!(ibv_dereg_mr(mr.get())));
    }
}

#[test]
fn an_atomic_write_is_seen_as_a_whole() {
    let pair = Pair::new();
    let target = pair.server.memory(64, ALL);
    for how in BOTH {
        target.fill(0);
        let word = Shared(target.ptr().wrapping_add(8).cast::<u64>());
        let looking = std::thread::spawn(move || {
            let end = std::time::Instant::now() + LIMIT;
            loop {
                let seen = c!(std::sync::atomic::AtomicU64::from_ptr(word.get()))
                    .load(std::sync::atomic::Ordering::Relaxed);
                let bytes = seen.to_ne_bytes();
                assert!(bytes.iter().all(|b| *b == bytes[0]), "torn: {seen:#x}");
                assert!(
                    std::time::Instant::now() < end,
                    "the last one has not come: {seen:#x}"
                );
                if bytes[0] == 200 {
                    return;
                }
            }
        });
        for i in 1..=200u8 {
            let wr = Wr::new(i.into(), Op::AtomicWrite(target.at(8), [i; 8]), vec![]);
            pair.client.post_by(how, &[wr]);
            let wc = pair.client.send_cq.expect(i.into(), SUCCESS);
            assert_eq!(wc.opcode, WC_ATOMIC_WRITE, "{how:?}: the opcode");
        }
        looking.join().unwrap();
        assert_eq!(
            (target.word(0), target.word(16)),
            (0, 0),
            "{how:?}: beside it"
        );
    }
}

#[test]
fn a_global_flush_needs_only_its_right() {
    let pair = Pair::new();
    let target = pair
        .server
        .memory(8192, LOCAL | REMOTE_WRITE | FLUSH_GLOBAL);
    let from = pair.client.memory(8192, LOCAL);
    from.write(0, &pattern(1, 8192));
    let requests = [
        Wr::new(1, Op::Write(target.at(0)), vec![from.sge(0, 8192)]),
        Wr::new(2, Op::Flush(target.at(0), 8192, 1, false), vec![]),
        Wr::new(3, Op::Flush(target.at(100), 0, 1, false), vec![]),
        Wr::new(4, Op::Flush(target.at(0), 0, 1, true), vec![]),
        Wr::new(5, Op::Flush(target.at(8191), 1, 1, false), vec![]).unsignaled(),
        Wr::new(6, Op::Flush(target.at(1), 8190, 1, false), vec![]),
    ];
    pair.client.post_by(Interface::Extended, &requests);
    pair.client.send_cq.expect(1, SUCCESS);
    same("written", &target.read(0, 8192), &pattern(1, 8192));
    for id in [2, 3, 4, 6] {
        assert_eq!(pair.client.send_cq.expect(id, SUCCESS).opcode, WC_FLUSH);
    }
}

const FILE_LEN: usize = 3 * 4096 + 100;

#[test]
fn a_persistent_flush_outlasts_the_target() {
    // The target: offers its file, and does nothing more.
    if let Some(path) = role() {
        let file = File::options().read(true).write(true).open(path).unwrap();
        let listener = Listener::new();
        tell(listener.address.port());
        let server = listener.accept(&Setup::default());
        let access = LOCAL | REMOTE_WRITE | FLUSH_GLOBAL | FLUSH_PERSISTENT;
        let memory = Memory::of(&server.pd, Pages::of_file(&file, FILE_LEN), access);
        let At { addr, rkey } = memory.at(0);
        tell(format!("{addr} {rkey}"));
        wait_to_go_on();
        return;
    }
    for (kind, whole) in [(2, false), (3, false), (2, true)] {
        let scratch = Scratch::new("flush", FILE_LEN as u64);
        let mut part = Part::start(scratch.0.to_str().unwrap());
        let port = part.told().parse().unwrap();
        let client = begin(
            &(std::net::Ipv4Addr::LOCALHOST, port).into(),
            &Setup::default(),
        );
        client.channel.expect(RDMA_CM_EVENT_ESTABLISHED);
        let place = part.told();
        let (addr, rkey) = place.split_once(' ').unwrap();
        let (addr, rkey): (u64, u32) = (addr.parse().unwrap(), rkey.parse().unwrap());
        let at = |at: usize| At {
            addr: addr + at as u64,
            rkey,
        };
        let data = pattern(kind.into(), FILE_LEN);
        let from = client.memory(FILE_LEN, LOCAL);
        from.write(0, &data);
        let len = if whole { 0 } else { FILE_LEN };
        let requests = [
            Wr::new(1, Op::Write(at(0)), vec![from.sge(0, FILE_LEN)]).unsignaled(),
            Wr::new(2, Op::Flush(at(0), len, kind, whole), vec![]),
        ];
        client.post_by(Interface::Extended, &requests);
        client.send_cq.expect(2, SUCCESS);
        part.kill();
        let mut seen = vec![];
        File::open(&scratch.0)
            .unwrap()
            .read_to_end(&mut seen)
            .unwrap();
        same(
            &format!("the file, flush {kind}, whole region {whole}"),
            &seen,
            &data,
        );
    }
}

#[test]
fn a_persistent_flush_of_a_part_of_a_file() {
    let pair = Pair::new();
    let scratch = Scratch::new("part", 1 << 20);
    let access = LOCAL | REMOTE_WRITE | FLUSH_PERSISTENT;
    let pages = Pages::of_file(&scratch.open(), 1 << 20);
    let target = Memory::of(&pair.server.pd, pages, access);
    let from = pair.client.memory(300_000, LOCAL);
    let data = pattern(3, 300_000);
    from.write(0, &data);
    for at in [0, 1, 4095, 500_001] {
        let requests = [
            Wr::new(1, Op::Write(target.at(at)), vec![from.sge(0, 300_000)]).unsignaled(),
            Wr::new(2, Op::Flush(target.at(at), 300_000, 2, false), vec![]),
        ];
        pair.client.post_by(Interface::Extended, &requests);
        pair.client.send_cq.expect(2, SUCCESS);
        let seen = fs::read(&scratch.0).unwrap();
        same("the file", &seen[at..at + 300_000], &data);
    }
}

/// Memory that a plain file is behind, as persistent memory has it here, takes advice as any other.
#[test]
fn advice_on_memory_of_a_plain_file() {
    use ib_uverbs_advise_mr_advice::*;
    let pair = Pair::new();
    let scratch = Scratch::new("advice", FILE_LEN as u64);
    let of_file = |access| {
        let pages = Pages::of_file(&scratch.open(), FILE_LEN);
        Memory::of(&pair.server.pd, pages, access)
    };
    let target = of_file(LOCAL | REMOTE_WRITE | FLUSH_PERSISTENT);
    let source = of_file(REMOTE_READ);
    for (memory, advice, len, expected) in [
        (&target, IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH, FILE_LEN, 0),
        (&target, IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE, 1, 0),
        (
            &target,
            IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT,
            FILE_LEN,
            0,
        ),
        (&source, IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH, FILE_LEN, 0),
        (
            &target,
            IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH,
            FILE_LEN + 1,
            libc::EFAULT,
        ),
        (
            &source,
            IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE,
            1,
            libc::EPERM,
        ),
        (&target, 3, 1, libc::EOPNOTSUPP),
    ] {
        let seen = memory.advise(advice, 0, len);
        assert_eq!(seen, expected, "advice {advice} for {len} bytes");
    }
}

#[test]
fn memory_without_a_file_can_not_be_made_persistent() {
    let pair = Pair::new();
    let mut memory = vec![0u8; 8192];
    let access = (LOCAL | REMOTE_WRITE | FLUSH_PERSISTENT) as i32;
    let addr = memory.as_mut_ptr().cast();
    let mr = c!(ibv_reg_mr(pair.server.pd.0, addr, 8192, access));
    assert_eq!((mr.is_null(), errno()), (true, libc::EINVAL));
}

#[test]
fn only_signaled_requests_complete() {
    let pair = Pair::new();
    let to = pair.server.memory(64, ALL);
    let from = pair.client.memory(64, LOCAL);
    for how in BOTH {
        for _ in 0..3 {
            // More than the queue holds in all.
            for first in (0..100).step_by(10) {
                let wrs: Vec<Wr> = (first..first + 10)
                    .map(|id| {
                        let wr = Wr::new(id, Op::Write(to.at(0)), vec![from.sge(0, 8)]);
                        if id % 5 == 4 { wr } else { wr.unsignaled() }
                    })
                    .collect();
                pair.client.post_by(how, &wrs);
                pair.client.send_cq.expect(first + 4, SUCCESS);
                pair.client.send_cq.expect(first + 9, SUCCESS);
            }
        }
        assert!(pair.client.send_cq.is_empty());
    }
}

#[test]
fn all_requests_complete_where_all_are_to_be_signaled() {
    let pair = Pair::with(|setup| setup.sig_all = true);
    let to = pair.server.memory(64, ALL);
    let from = pair.client.memory(64, LOCAL);
    for how in BOTH {
        let wrs: Vec<Wr> = (0..20)
            .map(|id| Wr::new(id, Op::Write(to.at(0)), vec![from.sge(0, 8)]).unsignaled())
            .collect();
        pair.client.post_by(how, &wrs);
        (0..20).for_each(|id| {
            pair.client.send_cq.expect(id, SUCCESS);
        });
    }
}

#[test]
fn requests_before_a_bad_one_are_posted() {
    let pair = Pair::new();
    let to = pair.server.memory(64, ALL);
    let from = pair.client.memory(64, LOCAL);
    let write = |id| Wr::new(id, Op::Write(to.at(0)), vec![from.sge(0, 8)]);
    let too_many = Wr::new(3, Op::Write(to.at(0)), vec![from.sge(0, 1); 33]);
    let no_word = Wr::new(3, Op::FetchAdd(to.at(0), 1), vec![from.sge(0, 4)]);
    for bad in [too_many, no_word] {
        let list = [write(1), write(2), bad.clone(), write(4)];
        assert_eq!(post_list(pair.client.qp(), &list), Err((libc::EINVAL, 2)));
        pair.client.send_cq.expect(1, SUCCESS);
        pair.client.send_cq.expect(2, SUCCESS);
        // All or nothing, here.
        assert_eq!(post_extended(pair.client.qp(), &list), Err(libc::EINVAL));
        pair.client.post(write(5));
        pair.client.send_cq.expect(5, SUCCESS);
        assert!(pair.client.send_cq.is_empty());
    }
}

#[test]
fn receives_before_a_bad_one_are_posted() {
    let pair = Pair::with(|setup| setup.cap.max_recv_sge = 2);
    let to = pair.server.memory(64, LOCAL);
    let recv = |id, pieces| (id, vec![to.sge(0, 8); pieces]);
    let list = [recv(1, 1), recv(2, 2), recv(3, 3), recv(4, 1)];
    assert_eq!(post_recvs(pair.server.qp(), &list), Err((libc::EINVAL, 2)));
    pair.server.recv(5, vec![]);
    for (i, id) in [1, 2, 5].into_iter().enumerate() {
        pair.client.post(Wr::new(i as u64, Op::Send, vec![]));
        pair.server.recv_cq.expect(id, SUCCESS);
    }
}

#[test]
fn what_is_aborted_was_never_posted() {
    let pair = Pair::new();
    let to = pair.server.memory(64, ALL);
    let from = pair.client.memory(64, LOCAL);
    from.fill(0x55);
    let qp = c!(ibv_qp_to_qp_ex(pair.client.qp()));
    for _ in 0..100 {
        c!(ibv_wr_start(qp));
        for id in 0..50 {
            add(qp, &Wr::new(id, Op::Write(to.at(0)), vec![from.sge(0, 64)]));
        }
        c!(ibv_wr_abort(qp));
    }
    // Nothing of it is in the queue, or done.
    let wr = Wr::new(77, Op::Write(to.at(0)), vec![from.sge(0, 8)]);
    pair.client.post_by(Interface::Extended, &[wr]);
    pair.client.send_cq.expect(77, SUCCESS);
    assert!(pair.client.send_cq.is_empty());
    same("beside it", &to.read(8, 56), &[0; 56]);
}

#[test]
fn other_calls_go_on_while_requests_are_being_put_together() {
    let pair = Pair::with(|setup| setup.srq = Some(8));
    let to = pair.server.memory(64, ALL);
    let from = pair.client.memory(64, LOCAL);
    let (client, server) = (
        Shared(&raw const pair.client),
        Shared(&raw const pair.server),
    );
    let (wr, recv) = (
        Wr::new(1, Op::Write(to.at(0)), vec![from.sge(0, 8)]),
        vec![to.sge(0, 8)],
    );
    let recv = Shared(recv.leak());
    let wr = Shared(Box::leak(Box::new(wr)) as *const Wr);
    soon("between start and complete", move || {
        let (client, server) = c!((&*client.get(), &*server.get()));
        let qp = c!(ibv_qp_to_qp_ex(client.qp()));
        // The server finds no receive, and waits for one.
        server.post(Wr::new(5, Op::Send, vec![]));
        let there = Instant::now() + Duration::from_millis(50);
        while Instant::now() < there {
            assert!(client.send_cq.is_empty());
        }
        c!(ibv_wr_start(qp));
        let recv = Shared(&recv);
        good(
            "ibv_post_srq_recv",
            client.srq.as_ref().unwrap().recv(9, recv.0.0),
        );
        assert!(client.send_cq.is_empty());
        client.send_cq.arm(false);
        add(qp, c!(&*wr.get()));
        assert_eq!(c!(ibv_wr_complete(qp)), 0);
        client.send_cq.expect(1, SUCCESS);
        client.recv_cq.expect(9, SUCCESS);
        server.send_cq.expect(5, SUCCESS);
    });
}

#[test]
fn another_thread_asks_for_events_while_requests_are_being_put_together() {
    let pair = Pair::new();
    let client = Shared(&raw const pair.client);
    soon("between start and complete", move || {
        let client = c!(&*client.get());
        let qp = c!(ibv_qp_to_qp_ex(client.qp()));
        c!(ibv_wr_start(qp));
        std::thread::scope(|scope| {
            scope.spawn(|| client.send_cq.arm(false));
            // Long enough for it to come to where it has to wait.
            let end = Instant::now() + Duration::from_millis(50);
            while Instant::now() < end {
                assert!(client.send_cq.is_empty());
            }
            c!(ibv_wr_abort(qp));
        });
    });
}

#[test]
fn receives_are_posted_while_requests_are_being_put_together() {
    let pair = Pair::new();
    for end in 0..2 {
        // The server finds no receive, and waits for one.
        pair.server.post(Wr::new(5, Op::Send, vec![]));
        let there = Instant::now() + Duration::from_millis(50);
        while Instant::now() < there {
            assert!(pair.client.send_cq.is_empty());
        }
        let client = Shared(&raw const pair.client);
        soon("between start and the end", move || {
            let client = c!(&*client.get());
            let qp = c!(ibv_qp_to_qp_ex(client.qp()));
            c!(ibv_wr_start(qp));
            client.recv(9, vec![]);
            // The connection goes on meanwhile.
            client.recv_cq.expect(9, SUCCESS);
            let too_many: Vec<_> = (0..65).map(|id| (id, vec![])).collect();
            assert_eq!(post_recvs(client.qp(), &too_many), Err((libc::ENOMEM, 64)));
            add(qp, &Wr::new(1, Op::Send, vec![]));
            match end {
                0 => assert_eq!(c!(ibv_wr_complete(qp)), 0),
                _ => c!(ibv_wr_abort(qp)),
            }
        });
        pair.server.send_cq.expect(5, SUCCESS);
        assert!(pair.client.send_cq.is_empty());
        // Those before the one too many are for others to come.
        for id in 0..64 {
            pair.server.post(Wr::new(5, Op::Send, vec![]));
            pair.client.recv_cq.expect(id, SUCCESS);
            pair.server.send_cq.expect(5, SUCCESS);
        }
        if end == 0 {
            pair.server.recv(10, vec![]);
            pair.client.send_cq.expect(1, SUCCESS);
        }
    }
}

#[test]
fn a_queue_pair_without_the_extended_interface_has_none() {
    let pair = Pair::with(|setup| setup.extended = false);
    let qp = c!(ibv_qp_to_qp_ex(pair.client.qp()));
    assert!(qp.is_null());
    write(&pair, Interface::List, 1000, None);
}

#[test]
fn receives_are_taken_in_their_order() {
    let pair = Pair::new();
    let to = pair.server.memory(64 * 64, LOCAL);
    let recvs: Vec<_> = (0..64)
        .map(|i| (i, vec![to.sge(64 * i as usize, 64)]))
        .collect();
    assert_eq!(post_recvs(pair.server.qp(), &recvs), Ok(()));
    let from = pair.client.memory(64, LOCAL);
    for i in 0..64u8 {
        from.fill(i);
        pair.client
            .post(Wr::new(i.into(), Op::Send, vec![from.sge(0, i.into())]));
        pair.client.send_cq.expect(i.into(), SUCCESS);
        let wc = pair.server.recv_cq.expect(i.into(), SUCCESS);
        assert_eq!(wc.len, i.into());
        let len = usize::from(i);
        same("the message", &to.read(64 * len, len), &vec![i; len]);
    }
}
