/* SPDX-License-Identifier: BSD-3-Clause */
/* Generated from the Rust sources: a change is made there, then `make header`. */

/*
 * Remote Persistent Memory Access: the functions of librpma.
 *
 * What holds for all of them: a handle is made by one function and released by
 * another, and is not used after that; a pointer argument points to what its type
 * says or is NULL, which is an error wherever it is not said to mean something; an
 * out-parameter is written only on success; the result is 0 or one of `RPMA_E_*`.
 */

#ifndef LIBRPMA_H
#define LIBRPMA_H 1

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <infiniband/verbs.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * For rpma_log_set_function(): the log function built in.
 */
#define RPMA_LOG_USE_DEFAULT_FUNCTION (NULL)

/**
 * Unknown error: something below did what it should not. The log has what is known.
 */
#define RPMA_E_UNKNOWN (-100000)

/**
 * Not supported by the device, by the system or by the other side: do it another way.
 */
#define RPMA_E_NOSUPP (-100001)

/**
 * A call of libibverbs or librdmacm failed; the log says which and why.
 */
#define RPMA_E_PROVIDER (-100002)

/**
 * Out of memory. No operation needs any; what makes something does.
 */
#define RPMA_E_NOMEM (-100003)

/**
 * Invalid argument, or arguments that do not go together: mostly a fault of the program.
 */
#define RPMA_E_INVAL (-100004)

/**
 * No completion is available: wait for one, or ask again.
 */
#define RPMA_E_NO_COMPLETION (-100005)

/**
 * No event is available: wait until the descriptor is readable.
 */
#define RPMA_E_NO_EVENT (-100006)

/**
 * Temporary error: try again. No function gives it now.
 */
#define RPMA_E_AGAIN (-100007)

/**
 * The completion channel is shared: wait by rpma_conn_wait().
 */
#define RPMA_E_SHARED_CHANNEL (-100008)

/**
 * The completion channel is not shared: wait by rpma_cq_wait().
 */
#define RPMA_E_NOT_SHARED_CHNL (-100009)

/**
 * How long a device is looked for, in milliseconds.
 */
#define RPMA_DEFAULT_TIMEOUT_MS 1000

/**
 * The memory is read by rpma_read() of the other side.
 */
#define RPMA_MR_USAGE_READ_SRC (1 << 0)

/**
 * rpma_read() of this side writes to the memory.
 */
#define RPMA_MR_USAGE_READ_DST (1 << 1)

/**
 * The memory is read by rpma_write() of this side.
 */
#define RPMA_MR_USAGE_WRITE_SRC (1 << 2)

/**
 * rpma_write() and rpma_atomic_write() of the other side write to the memory.
 */
#define RPMA_MR_USAGE_WRITE_DST (1 << 3)

/**
 * rpma_flush() of the other side makes what it wrote visible.
 */
#define RPMA_MR_USAGE_FLUSH_TYPE_VISIBILITY (1 << 4)

/**
 * rpma_flush() of the other side makes what it wrote persistent.
 */
#define RPMA_MR_USAGE_FLUSH_TYPE_PERSISTENT (1 << 5)

/**
 * The memory is read by rpma_send() of this side.
 */
#define RPMA_MR_USAGE_SEND (1 << 6)

/**
 * Messages are received into the memory.
 */
#define RPMA_MR_USAGE_RECV (1 << 7)

/**
 * As flags of rpma_conn_wait(), which ignores them.
 */
#define RPMA_W_WAIT_FOR_COMPLETION 1

/**
 * An operation completes with an entry in the CQ only if it fails.
 */
#define RPMA_F_COMPLETION_ON_ERROR 1

/**
 * An operation completes with an entry in the CQ in any case.
 */
#define RPMA_F_COMPLETION_ALWAYS 3

/**
 * What the offset of an atomic write must be a multiple of, in bytes.
 */
#define RPMA_ATOMIC_WRITE_ALIGNMENT 8

/**
 * The thresholds of the log.
 */
enum rpma_log_threshold {
    /**
     * What gets to the log function at all; RPMA_LOG_LEVEL_WARNING at first.
     */
    RPMA_LOG_THRESHOLD,
    /**
     * What the log function built in writes to stderr too; RPMA_LOG_DISABLED at
     * first. A log function of your own may go by it or not.
     */
    RPMA_LOG_THRESHOLD_AUX,
    /**
     * How many thresholds there are.
     */
    RPMA_LOG_THRESHOLD_MAX
};

/**
 * How grave a message is. A threshold lets pass what is as grave or graver.
 */
enum rpma_log_level {
    /**
     * As a threshold: no message at all.
     */
    RPMA_LOG_DISABLED = -1,
    /**
     * The library can't go on.
     */
    RPMA_LOG_LEVEL_FATAL,
    /**
     * Something failed, and the caller was told so by a code.
     */
    RPMA_LOG_LEVEL_ERROR,
    /**
     * Something is amiss that does not make the function fail.
     */
    RPMA_LOG_LEVEL_WARNING,
    /**
     * Steps in the life of a connection.
     */
    RPMA_LOG_LEVEL_NOTICE,
    /**
     * What the library found out and decided.
     */
    RPMA_LOG_LEVEL_INFO,
    /**
     * What helps to find faults.
     */
    RPMA_LOG_LEVEL_DEBUG
};

/**
 * By which address a device is looked for.
 */
enum rpma_util_ibv_context_type {
    /**
     * By an address of its own.
     */
    RPMA_UTIL_IBV_CONTEXT_LOCAL,
    /**
     * By an address that it reaches.
     */
    RPMA_UTIL_IBV_CONTEXT_REMOTE
};

/**
 * What became of a connection.
 */
enum rpma_conn_event {
    /**
     * No event.
     */
    RPMA_CONN_UNDEFINED = -1,
    /**
     * The connection is made.
     */
    RPMA_CONN_ESTABLISHED,
    /**
     * The connection is closed, by either side: disconnect, unless this side did, and
     * delete it.
     */
    RPMA_CONN_CLOSED,
    /**
     * The connection is broken: delete it.
     */
    RPMA_CONN_LOST,
    /**
     * The other side has rejected the request: delete the connection.
     */
    RPMA_CONN_REJECTED,
    /**
     * The other side can't be reached: delete the connection, and try again later.
     */
    RPMA_CONN_UNREACHABLE
};

/**
 * How far a flush goes.
 */
enum rpma_flush_type {
    /**
     * The data survives a loss of power.
     */
    RPMA_FLUSH_TYPE_PERSISTENT,
    /**
     * The data is visible to all that runs on the other side.
     */
    RPMA_FLUSH_TYPE_VISIBILITY
};

/**
 * A connection.
 */
struct rpma_conn;

/**
 * How a connection is made.
 */
struct rpma_conn_cfg;

/**
 * A connection that one side has asked for and that is not made yet.
 */
struct rpma_conn_req;

/**
 * A completion queue, of a connection or a shared RQ.
 */
struct rpma_cq;

/**
 * Where connection requests of other sides come in.
 */
struct rpma_ep;

/**
 * Memory of this process, registered for use by its device.
 */
struct rpma_mr_local;

/**
 * Memory of the other side, as this side knows it.
 */
struct rpma_mr_remote;

/**
 * A device opened for use, the base of all that is made on it.
 */
struct rpma_peer;

/**
 * What one side tells the other about itself.
 */
struct rpma_peer_cfg;

/**
 * A receive queue that several connections share.
 */
struct rpma_srq;

/**
 * How a shared RQ is made.
 */
struct rpma_srq_cfg;

/**
 * A function that gets the messages of the log: their level, where they come from,
 * and a format with its arguments as for printf(3), ending in a newline.
 *
 * It is called by whatever thread has something to say, several at a time, so it
 * must be thread-safe. The strings live only until it returns.
 */
typedef void rpma_log_function(enum rpma_log_level level,
                               const char *file_name,
                               int line_no,
                               const char *function_name,
                               const char *message_format,
                               ...);

/**
 * Data that goes with a connection request or its answer.
 */
struct rpma_conn_private_data {
    /**
     * Where it is.
     */
    void *ptr;
    /**
     * How many bytes it is long.
     */
    uint8_t len;
};

/**
 * Says what a code means: 0 is "Success", and a number that is no code is "Unknown
 * error".
 *
 * ret is 0 or one of RPMA_E_*.
 *
 * Returns a static string, not to be changed or released.
 *
 * Thread-safe. Cannot fail.
 */
const char *rpma_err_2str(int ret);

/**
 * Sets a threshold of the log, for the whole process.
 *
 * threshold is one of enum rpma_log_threshold.
 *
 * level is one of enum rpma_log_level.
 *
 * Thread-safe, also while others log.
 *
 * Errors:
 * - RPMA_E_INVAL: threshold or level is none of its enum
 */
int rpma_log_set_threshold(enum rpma_log_threshold threshold, enum rpma_log_level level);

/**
 * Gives a threshold of the log.
 *
 * Thread-safe.
 *
 * Errors, with *level as it was:
 * - RPMA_E_INVAL: threshold is none of its enum, or level is NULL
 */
int rpma_log_get_threshold(enum rpma_log_threshold threshold, enum rpma_log_level *level);

/**
 * Sets the function that gets the messages of the log, for the whole process.
 *
 * RPMA_LOG_USE_DEFAULT_FUNCTION, which is NULL, stands for the function built in, which
 * is in place at first. It writes to syslog(3), as "rpma" of facility LOCAL7, and what
 * passes RPMA_LOG_THRESHOLD_AUX to stderr too.
 *
 * log_function is called with each message that passes RPMA_LOG_THRESHOLD. It is a
 * rpma_log_function.
 *
 * Thread-safe, also while others log; a message under way may still go to the function
 * before. Cannot fail.
 */
int rpma_log_set_function(rpma_log_function *log_function);

/**
 * Finds the RDMA device of an IPv4 or IPv6 address or of a host name.
 *
 * type is one of enum rpma_util_ibv_context_type.
 *
 * The device stays open. It is the caller's to use but not to close.
 *
 * Thread-safe.
 *
 * Errors, with *ibv_ctx_ptr as it was:
 * - RPMA_E_INVAL: addr or ibv_ctx_ptr is NULL, or type is none of its enum
 * - RPMA_E_PROVIDER: the address can't be looked up, bound to or reached, or no RDMA
 *   device serves it, as none serves the loopback address: the log says which. Take an
 *   address that rdma(8) or ibv_devinfo(1) shows a device for, or run over softverbs(7).
 */
int rpma_utils_get_ibv_context(const char *addr,
                               enum rpma_util_ibv_context_type type,
                               struct ibv_context **ibv_ctx_ptr);

/**
 * Tells whether a device pages on demand for RDMA WRITE and RDMA READ: 1 if so, else 0.
 *
 * On such a device, memory that can't be pinned can be registered too, such as that of a
 * file on a DAX filesystem.
 *
 * Thread-safe.
 *
 * Errors:
 * - RPMA_E_INVAL: ibv_ctx or is_odp_capable is NULL
 * - RPMA_E_PROVIDER: ibv_query_device_ex(3) failed, for the reason that the log gives;
 *   *is_odp_capable is 0 then
 */
int rpma_utils_ibv_context_is_odp_capable(struct ibv_context *ibv_ctx, int *is_odp_capable);

/**
 * Says what an event of a connection is.
 *
 * conn_event is one of enum rpma_conn_event.
 *
 * Returns a static string, not to be changed or released; for another number it is
 * "Unsupported connection event".
 *
 * Thread-safe. Cannot fail.
 */
const char *rpma_utils_conn_event_2str(enum rpma_conn_event conn_event);

/**
 * Makes a peer configuration.
 *
 * In it direct write to persistent memory is not supported.
 *
 * It is the caller's, to be released by rpma_peer_cfg_delete(). One side makes it and
 * sends its descriptor; the other makes a copy of that by
 * rpma_peer_cfg_from_descriptor() and gives it to rpma_conn_apply_remote_peer_cfg().
 *
 * Thread-safe.
 *
 * Errors, with *pcfg_ptr as it was:
 * - RPMA_E_INVAL: pcfg_ptr is NULL
 * - RPMA_E_NOMEM: out of memory: nothing was made; the call can be repeated
 */
int rpma_peer_cfg_new(struct rpma_peer_cfg **pcfg_ptr);

/**
 * Releases a peer configuration.
 *
 * *pcfg_ptr is set to NULL; one that is NULL already is fine.
 *
 * A connection that the configuration was applied to keeps nothing of it.
 *
 * Thread-safe on separate configurations.
 *
 * Errors:
 * - RPMA_E_INVAL: pcfg_ptr is NULL
 */
int rpma_peer_cfg_delete(struct rpma_peer_cfg **pcfg_ptr);

/**
 * Declares whether direct write to persistent memory is supported.
 *
 * It is if what a device writes into the persistent memory of this side is persistent
 * once it is flushed, with no help of the processor. That is a matter of the platform,
 * which the library can't find out: say true where the platform's manual does. It is
 * false at first.
 *
 * Thread-safe.
 *
 * Errors:
 * - RPMA_E_INVAL: pcfg is NULL
 */
int rpma_peer_cfg_set_direct_write_to_pmem(struct rpma_peer_cfg *pcfg, bool supported);

/**
 * Tells whether direct write to persistent memory is supported.
 *
 * Thread-safe.
 *
 * Errors, with *supported as it was:
 * - RPMA_E_INVAL: pcfg or supported is NULL
 */
int rpma_peer_cfg_get_direct_write_to_pmem(const struct rpma_peer_cfg *pcfg, bool *supported);

/**
 * Writes the descriptor of a peer configuration, to be sent to the other side.
 *
 * desc has room for as many bytes as rpma_peer_cfg_get_descriptor_size() tells. The
 * other side must be able to trust what it gets: an attacker who changes it may make it
 * take for persistent what is not. Send it by a secured connection.
 *
 * Thread-safe.
 *
 * Errors:
 * - RPMA_E_INVAL: pcfg or desc is NULL
 */
int rpma_peer_cfg_get_descriptor(const struct rpma_peer_cfg *pcfg, void *desc);

/**
 * Gives the size of the descriptor of a peer configuration, in bytes.
 *
 * Thread-safe.
 *
 * Errors, with *desc_size as it was:
 * - RPMA_E_INVAL: pcfg or desc_size is NULL
 */
int rpma_peer_cfg_get_descriptor_size(const struct rpma_peer_cfg *pcfg, size_t *desc_size);

/**
 * Makes a peer configuration of a descriptor that the other side has sent.
 *
 * What follows the descriptor within desc_size bytes is ignored. The configuration is
 * the caller's, to be released by rpma_peer_cfg_delete(); it keeps nothing of desc.
 *
 * Thread-safe.
 *
 * Errors, with *pcfg_ptr as it was:
 * - RPMA_E_INVAL: desc or pcfg_ptr is NULL, or desc_size is 0
 * - RPMA_E_NOMEM: out of memory: nothing was made; the call can be repeated
 */
int rpma_peer_cfg_from_descriptor(const void *desc,
                                  size_t desc_size,
                                  struct rpma_peer_cfg **pcfg_ptr);

/**
 * Makes a peer of an open device, such as rpma_utils_get_ibv_context() finds.
 *
 * A peer is the base of all that is made on the device: memory regions, endpoints and
 * connections. The device must stay open as long as the peer exists. The peer is the
 * caller's, to be released by rpma_peer_delete(); it may serve many threads and
 * connections.
 *
 * Thread-safe.
 *
 * Errors, with *peer_ptr as it was:
 * - RPMA_E_INVAL: ibv_ctx or peer_ptr is NULL
 * - RPMA_E_NOMEM: out of memory, also within ibv_alloc_pd(3): nothing was made; the call
 *   can be repeated
 * - RPMA_E_PROVIDER: ibv_query_device_ex(3) or ibv_alloc_pd(3) failed, for the reason
 *   that the log gives: the device may have gone, or have no more protection domains
 * - RPMA_E_UNKNOWN: ibv_alloc_pd(3) failed without saying why
 */
int rpma_peer_new(struct ibv_context *ibv_ctx, struct rpma_peer **peer_ptr);

/**
 * Releases a peer.
 *
 * *peer_ptr is set to NULL; one that is NULL already is fine.
 *
 * All that was made of the peer must be released before.
 *
 * Thread-safe on separate peers.
 *
 * Errors:
 * - RPMA_E_INVAL: peer_ptr is NULL
 * - RPMA_E_PROVIDER: ibv_dealloc_pd(3) failed, as it does where something made of the
 *   peer still exists; the peer is gone all the same
 */
int rpma_peer_delete(struct rpma_peer **peer_ptr);

/**
 * Registers memory for use by the device of a peer: size bytes at ptr.
 *
 * usage is any of RPMA_MR_USAGE_*, one at least.
 *
 * The memory stays the caller's and must stay mapped until the region is released by
 * rpma_mr_dereg(); the region is the caller's.
 *
 * Memory that a device with native flush does not take for persistent is registered all
 * the same, with a warning in the log: the device then refuses to flush it to
 * persistence. Where the device can page on demand, memory that can only be registered
 * so is.
 *
 * Where peers with and without native flush connect, memory to be flushed needs
 * RPMA_MR_USAGE_READ_SRC too: a side without flushes by reading.
 *
 * Thread-safe.
 *
 * Errors, with *mr_ptr as it was:
 * - RPMA_E_INVAL: peer, ptr or mr_ptr is NULL, size is 0, or usage is 0 or has
 *   a bit that is none of RPMA_MR_USAGE_*
 * - RPMA_E_NOMEM: out of memory: nothing was made; the call can be repeated
 * - RPMA_E_PROVIDER: ibv_reg_mr(3) failed. If the log says "Cannot allocate memory", it
 *   is mostly the limit of locked memory that is too low: see RLIMIT_MEMLOCK of
 *   getrlimit(2). If it says "Bad address", not all of the range is mapped, or not for
 *   writing. "Operation not supported", of a file on a DAX filesystem, asks for a device
 *   that pages on demand.
 */
int rpma_mr_reg(struct rpma_peer *peer,
                void *ptr,
                size_t size,
                int usage,
                struct rpma_mr_local **mr_ptr);

/**
 * Releases a local region.
 *
 * *mr_ptr is set to NULL; one that is NULL already is fine.
 *
 * No operation that uses the region may be under way. The memory stays, and is the
 * caller's to release.
 *
 * Thread-safe on separate regions.
 *
 * Errors:
 * - RPMA_E_INVAL: mr_ptr is NULL
 * - RPMA_E_PROVIDER: ibv_dereg_mr(3) failed, for the reason that the log gives; the
 *   region is gone all the same
 */
int rpma_mr_dereg(struct rpma_mr_local **mr_ptr);

/**
 * Writes the descriptor of a local region, by which the other side gets at it.
 *
 * desc has room for as many bytes as rpma_mr_get_descriptor_size() tells. The
 * descriptor is the same on every machine: u64 address, u64 size, u32 rkey, u8 usage,
 * all little endian. The other side must be able to trust what it gets: an attacker who
 * changes it may make it write elsewhere. Send it by a secured connection.
 *
 * Thread-safe.
 *
 * Errors:
 * - RPMA_E_INVAL: mr or desc is NULL
 */
int rpma_mr_get_descriptor(const struct rpma_mr_local *mr, void *desc);

/**
 * Gives the size of the descriptor of a local region, in bytes.
 *
 * Thread-safe.
 *
 * Errors, with *desc_size as it was:
 * - RPMA_E_INVAL: mr or desc_size is NULL
 */
int rpma_mr_get_descriptor_size(const struct rpma_mr_local *mr, size_t *desc_size);

/**
 * Gives the address of the memory of a local region.
 *
 * The memory is that of rpma_mr_reg(), and its owner's.
 *
 * Thread-safe.
 *
 * Errors, with *ptr as it was:
 * - RPMA_E_INVAL: mr or ptr is NULL
 */
int rpma_mr_get_ptr(const struct rpma_mr_local *mr, void **ptr);

/**
 * Gives the size of a local region, in bytes.
 *
 * Thread-safe.
 *
 * Errors, with *size as it was:
 * - RPMA_E_INVAL: mr or size is NULL
 */
int rpma_mr_get_size(const struct rpma_mr_local *mr, size_t *size);

/**
 * Gives the device advice about a range of a local region: len bytes from offset on.
 *
 * advice and flags are those of ibv_advise_mr(3).
 *
 * Thread-safe.
 *
 * Errors:
 * - RPMA_E_INVAL: mr is NULL, len is 2^32 or more, the range is not within the
 *   region, its usage does not allow the advice, or the flags are invalid; or the device
 *   takes advice only for memory that it pages on demand, and this is not: go on without
 * - RPMA_E_NOSUPP: the device or the system takes no advice: go on without
 * - RPMA_E_PROVIDER: ibv_advise_mr(3) failed otherwise, for the reason that the log
 *   gives
 */
int rpma_mr_advise(struct rpma_mr_local *mr, size_t offset, size_t len, int advice, uint32_t flags);

/**
 * Makes a remote region of a descriptor that the other side has sent.
 *
 * What follows the descriptor within desc_size bytes is ignored. The region is the
 * caller's, to be released by rpma_mr_remote_delete(); it keeps nothing of desc.
 *
 * The other side's region must be registered as long as this side uses it. Once it is
 * not, operations on it complete with IBV_WC_REM_ACCESS_ERR.
 *
 * Thread-safe.
 *
 * Errors, with *mr_ptr as it was:
 * - RPMA_E_INVAL: desc or mr_ptr is NULL, desc_size is too small, or the
 *   descriptor says of no use of the memory: it is not one, or not all of it has come
 * - RPMA_E_NOMEM: out of memory: nothing was made; the call can be repeated
 */
int rpma_mr_remote_from_descriptor(const void *desc,
                                   size_t desc_size,
                                   struct rpma_mr_remote **mr_ptr);

/**
 * Gives the size of a remote region, in bytes.
 *
 * Thread-safe.
 *
 * Errors, with *size as it was:
 * - RPMA_E_INVAL: mr or size is NULL
 */
int rpma_mr_remote_get_size(const struct rpma_mr_remote *mr, size_t *size);

/**
 * Gives the types of flush that a remote region supports.
 *
 * *flush_type is none, one or both of RPMA_MR_USAGE_FLUSH_TYPE_*.
 *
 * Thread-safe.
 *
 * Errors, with *flush_type as it was:
 * - RPMA_E_INVAL: mr or flush_type is NULL
 */
int rpma_mr_remote_get_flush_type(const struct rpma_mr_remote *mr, int *flush_type);

/**
 * Releases a remote region.
 *
 * *mr_ptr is set to NULL; one that is NULL already is fine.
 *
 * The memory on the other side is not concerned.
 *
 * Thread-safe on separate regions.
 *
 * Errors:
 * - RPMA_E_INVAL: mr_ptr is NULL
 */
int rpma_mr_remote_delete(struct rpma_mr_remote **mr_ptr);

/**
 * Makes a connection configuration.
 *
 * The defaults are a timeout of 1000 ms, a CQ of 10 entries, no CQ for receives alone, a
 * send queue and a receive queue of 10 requests, completion channels that are not
 * shared, and no shared RQ.
 *
 * It is the caller's, to be released by rpma_conn_cfg_delete(). It may serve many
 * connections; a connection keeps nothing of it.
 *
 * Thread-safe.
 *
 * Errors:
 * - RPMA_E_INVAL: cfg_ptr is NULL
 * - RPMA_E_NOMEM: out of memory: nothing was made, and *cfg_ptr is NULL; the call can
 *   be repeated
 */
int rpma_conn_cfg_new(struct rpma_conn_cfg **cfg_ptr);

/**
 * Releases a connection configuration.
 *
 * *cfg_ptr is set to NULL; one that is NULL already is fine.
 *
 * Requests and connections made with it keep nothing of it.
 *
 * Thread-safe on separate configurations.
 *
 * Errors:
 * - RPMA_E_INVAL: cfg_ptr is NULL
 */
int rpma_conn_cfg_delete(struct rpma_conn_cfg **cfg_ptr);

/**
 * Sets how long resolving the address and the route of the other side may take.
 *
 * timeout_ms is for each of the two, in milliseconds; it is 1000 at first.
 *
 * Thread-safe.
 *
 * Errors:
 * - RPMA_E_INVAL: cfg is NULL, or timeout_ms is negative
 */
int rpma_conn_cfg_set_timeout(struct rpma_conn_cfg *cfg, int timeout_ms);

/**
 * Gives how long resolving the address and the route of the other side may take.
 *
 * *timeout_ms is for each of the two, in milliseconds.
 *
 * Thread-safe.
 *
 * Errors, with *timeout_ms as it was:
 * - RPMA_E_INVAL: cfg or timeout_ms is NULL
 */
int rpma_conn_cfg_get_timeout(const struct rpma_conn_cfg *cfg, int *timeout_ms);

/**
 * Sets the number of entries of the CQ of a connection; it is 10 at first.
 *
 * The CQ must have room for the completions of all operations under way: one that
 * overflows breaks the connection. More than INT_MAX counts as INT_MAX.
 *
 * Thread-safe.
 *
 * Errors:
 * - RPMA_E_INVAL: cfg is NULL
 */
int rpma_conn_cfg_set_cq_size(struct rpma_conn_cfg *cfg, uint32_t cq_size);

/**
 * Gives the number of entries of the CQ of a connection.
 *
 * Thread-safe.
 *
 * Errors, with *cq_size as it was:
 * - RPMA_E_INVAL: cfg or cq_size is NULL
 */
int rpma_conn_cfg_get_cq_size(const struct rpma_conn_cfg *cfg, uint32_t *cq_size);

/**
 * Sets the number of entries of the CQ for receives alone; it is 0 at first.
 *
 * With 0 there is no such CQ, and receives complete on the other one. More than INT_MAX
 * counts as INT_MAX.
 *
 * Thread-safe.
 *
 * Errors:
 * - RPMA_E_INVAL: cfg is NULL
 */
int rpma_conn_cfg_set_rcq_size(struct rpma_conn_cfg *cfg, uint32_t rcq_size);

/**
 * Gives the number of entries of the CQ for receives alone.
 *
 * Thread-safe.
 *
 * Errors, with *rcq_size as it was:
 * - RPMA_E_INVAL: cfg or rcq_size is NULL
 */
int rpma_conn_cfg_get_rcq_size(const struct rpma_conn_cfg *cfg, uint32_t *rcq_size);

/**
 * Sets the number of requests that the send queue holds; it is 10 at first.
 *
 * Reads, writes, flushes and sends take one place each until they have completed. A
 * request that completes only on error keeps its place until a later one that always
 * completes has done so.
 *
 * Thread-safe.
 *
 * Errors:
 * - RPMA_E_INVAL: cfg is NULL
 */
int rpma_conn_cfg_set_sq_size(struct rpma_conn_cfg *cfg, uint32_t sq_size);

/**
 * Gives the number of requests that the send queue holds.
 *
 * Thread-safe.
 *
 * Errors, with *sq_size as it was:
 * - RPMA_E_INVAL: cfg or sq_size is NULL
 */
int rpma_conn_cfg_get_sq_size(const struct rpma_conn_cfg *cfg, uint32_t *sq_size);

/**
 * Sets the number of requests that the receive queue holds; it is 10 at first.
 *
 * Thread-safe.
 *
 * Errors:
 * - RPMA_E_INVAL: cfg is NULL
 */
int rpma_conn_cfg_set_rq_size(struct rpma_conn_cfg *cfg, uint32_t rq_size);

/**
 * Gives the number of requests that the receive queue holds.
 *
 * Thread-safe.
 *
 * Errors, with *rq_size as it was:
 * - RPMA_E_INVAL: cfg or rq_size is NULL
 */
int rpma_conn_cfg_get_rq_size(const struct rpma_conn_cfg *cfg, uint32_t *rq_size);

/**
 * Sets whether the two CQs of a connection share one completion channel; they do not at
 * first.
 *
 * With a shared channel wait by rpma_conn_wait(), else by rpma_cq_wait().
 *
 * Thread-safe.
 *
 * Errors:
 * - RPMA_E_INVAL: cfg is NULL
 */
int rpma_conn_cfg_set_compl_channel(struct rpma_conn_cfg *cfg, bool shared);

/**
 * Tells whether the two CQs of a connection share one completion channel.
 *
 * Thread-safe.
 *
 * Errors, with *shared as it was:
 * - RPMA_E_INVAL: cfg or shared is NULL
 */
int rpma_conn_cfg_get_compl_channel(const struct rpma_conn_cfg *cfg, bool *shared);

/**
 * Sets the shared RQ that connections receive from; there is none at first.
 *
 * The shared RQ stays the caller's, and must outlive the configuration's use and every
 * connection that receives from it. If it has a CQ of its own, receives complete there,
 * and the connection has no CQ for receives.
 *
 * Thread-safe.
 *
 * Errors:
 * - RPMA_E_INVAL: cfg or srq is NULL
 */
int rpma_conn_cfg_set_srq(struct rpma_conn_cfg *cfg, struct rpma_srq *srq);

/**
 * Gives the shared RQ that connections receive from, NULL if there is none.
 *
 * It is not the caller's by that, but whose it was.
 *
 * Thread-safe.
 *
 * Errors, with *srq_ptr as it was:
 * - RPMA_E_INVAL: cfg or srq_ptr is NULL
 */
int rpma_conn_cfg_get_srq(const struct rpma_conn_cfg *cfg, struct rpma_srq **srq_ptr);

/**
 * Makes a shared RQ configuration.
 *
 * The defaults are a queue of 20 requests and a CQ of its own of 20 entries.
 *
 * It is the caller's, to be released by rpma_srq_cfg_delete(). A shared RQ keeps nothing
 * of it.
 *
 * Thread-safe.
 *
 * Errors:
 * - RPMA_E_INVAL: cfg_ptr is NULL
 * - RPMA_E_NOMEM: out of memory: nothing was made, and *cfg_ptr is NULL; the call can
 *   be repeated
 */
int rpma_srq_cfg_new(struct rpma_srq_cfg **cfg_ptr);

/**
 * Releases a shared RQ configuration.
 *
 * *cfg_ptr is set to NULL; one that is NULL already is fine.
 *
 * Thread-safe on separate configurations.
 *
 * Errors:
 * - RPMA_E_INVAL: cfg_ptr is NULL
 */
int rpma_srq_cfg_delete(struct rpma_srq_cfg **cfg_ptr);

/**
 * Sets the number of requests that the shared RQ holds; it is 20 at first.
 *
 * Thread-safe.
 *
 * Errors:
 * - RPMA_E_INVAL: cfg is NULL
 */
int rpma_srq_cfg_set_rq_size(struct rpma_srq_cfg *cfg, uint32_t rq_size);

/**
 * Gives the number of requests that the shared RQ holds.
 *
 * Thread-safe.
 *
 * Errors, with *rq_size as it was:
 * - RPMA_E_INVAL: cfg or rq_size is NULL
 */
int rpma_srq_cfg_get_rq_size(const struct rpma_srq_cfg *cfg, uint32_t *rq_size);

/**
 * Sets the number of entries of the CQ that the shared RQ has of its own; it is 20 at
 * first.
 *
 * With 0 it has none, and its receives complete on the CQs of the connections. More than
 * INT_MAX counts as INT_MAX.
 *
 * Thread-safe.
 *
 * Errors:
 * - RPMA_E_INVAL: cfg is NULL
 */
int rpma_srq_cfg_set_rcq_size(struct rpma_srq_cfg *cfg, uint32_t rcq_size);

/**
 * Gives the number of entries of the CQ that the shared RQ has of its own.
 *
 * Thread-safe.
 *
 * Errors, with *rcq_size as it was:
 * - RPMA_E_INVAL: cfg or rcq_size is NULL
 */
int rpma_srq_cfg_get_rcq_size(const struct rpma_srq_cfg *cfg, uint32_t *rcq_size);

/**
 * Makes a shared RQ, from which several connections receive.
 *
 * It has a CQ of its own unless the configuration gives that 0 entries. A cfg that is
 * NULL stands for the defaults of rpma_srq_cfg_new().
 *
 * It is the caller's, to be released by rpma_srq_delete() before the peer is.
 *
 * Thread-safe.
 *
 * Errors, with *srq_ptr as it was, or NULL where there is no memory for the object
 * itself:
 * - RPMA_E_INVAL: peer or srq_ptr is NULL
 * - RPMA_E_NOMEM: out of memory: nothing was made; the call can be repeated
 * - RPMA_E_PROVIDER: ibv_create_srq(3), ibv_create_comp_channel(3), ibv_create_cq(3) or
 *   ibv_req_notify_cq(3) failed, for the reason that the log gives. Mostly a size is
 *   more than the device allows: compare with max_srq_wr and max_cqe of ibv_devinfo(1).
 */
int rpma_srq_new(struct rpma_peer *peer, struct rpma_srq_cfg *cfg, struct rpma_srq **srq_ptr);

/**
 * Releases a shared RQ and its CQ.
 *
 * *srq_ptr is set to NULL; one that is NULL already is fine.
 *
 * All connections that receive from it must be deleted before.
 *
 * Thread-safe on separate objects.
 *
 * Errors:
 * - RPMA_E_INVAL: srq_ptr is NULL
 * - RPMA_E_PROVIDER: ibv_destroy_cq(3), ibv_destroy_comp_channel(3) or
 *   ibv_destroy_srq(3) failed, the last where a connection still receives from it; the
 *   shared RQ is gone all the same
 */
int rpma_srq_delete(struct rpma_srq **srq_ptr);

/**
 * Posts a buffer for a message that any of the connections receives.
 *
 * The buffer is len bytes of dst from offset on, or none with dst NULL and
 * offset and len 0.
 *
 * The buffers are taken in no order that can be relied on. op_context comes back as
 * wr_id of the completion; until then the memory may be written and the region must
 * stay registered.
 *
 * Thread-safe.
 *
 * Errors:
 * - RPMA_E_INVAL: srq is NULL, dst is NULL while offset or len is not 0, or
 *   len is 2^32 or more
 * - RPMA_E_PROVIDER: ibv_post_srq_recv(3) failed: mostly the shared RQ is full, which
 *   rpma_srq_cfg_set_rq_size() makes longer
 */
int rpma_srq_recv(struct rpma_srq *srq,
                  struct rpma_mr_local *dst,
                  size_t offset,
                  size_t len,
                  const void *op_context);

/**
 * Gives the CQ that a shared RQ has of its own, NULL if it has none.
 *
 * It lives as long as the shared RQ and is not the caller's.
 *
 * Thread-safe.
 *
 * Errors, with *rcq_ptr as it was:
 * - RPMA_E_INVAL: srq or rcq_ptr is NULL
 */
int rpma_srq_get_rcq(const struct rpma_srq *srq, struct rpma_cq **rcq_ptr);

/**
 * Listens for connections at an address and a port, each a name or a number.
 *
 * The endpoint is the caller's, to be released by rpma_ep_shutdown() before the peer is.
 *
 * Thread-safe.
 *
 * Errors, with *ep_ptr as it was:
 * - RPMA_E_INVAL: peer, addr, port or ep_ptr is NULL
 * - RPMA_E_NOMEM: out of memory: nothing was made; the call can be repeated
 * - RPMA_E_PROVIDER: rdma_create_event_channel(3), rdma_create_id(3),
 *   rdma_getaddrinfo(3), rdma_bind_addr(3) or rdma_listen(3) failed, for the reason that
 *   the log gives: the address is none of this host's, or the port is taken or needs a
 *   privilege
 */
int rpma_ep_listen(struct rpma_peer *peer,
                   const char *addr,
                   const char *port,
                   struct rpma_ep **ep_ptr);

/**
 * Releases an endpoint, so that it listens no more.
 *
 * *ep_ptr is set to NULL; one that is NULL already is fine.
 *
 * Connections got from it live on; requests must have been connected or deleted before.
 *
 * Thread-safe on separate endpoints.
 *
 * Errors:
 * - RPMA_E_INVAL: ep_ptr is NULL
 * - RPMA_E_PROVIDER: rdma_destroy_id(3) failed, for the reason that the log gives; the
 *   endpoint is gone all the same
 */
int rpma_ep_shutdown(struct rpma_ep **ep_ptr);

/**
 * Gives the descriptor that is readable when rpma_ep_next_conn_req() has a request.
 *
 * It is the library's, not to be read or closed; it may be made non-blocking.
 *
 * Thread-safe.
 *
 * Errors, with *fd as it was:
 * - RPMA_E_INVAL: ep or fd is NULL
 */
int rpma_ep_get_fd(const struct rpma_ep *ep, int *fd);

/**
 * Takes the next connection request of an endpoint.
 *
 * It waits for one unless the descriptor is non-blocking: see rpma_ep_get_fd(). A cfg
 * that is NULL stands for the defaults of rpma_conn_cfg_new().
 *
 * The request is the caller's, for rpma_conn_req_connect() to accept or
 * rpma_conn_req_delete() to reject. Where the function fails, the other side is
 * rejected.
 *
 * Not thread-safe on one endpoint.
 *
 * Errors, with *req_ptr as it was, or NULL where rdma_ack_cm_event(3) failed:
 * - RPMA_E_INVAL: ep or req_ptr is NULL, the event is no connection request, or
 *   cfg wants a shared completion channel with a shared RQ that has its own CQ. An
 *   event that is no request is mostly that of a client which has given up: take the
 *   next one.
 * - RPMA_E_NO_EVENT: there is no request: wait until the descriptor is readable
 * - RPMA_E_NOMEM: out of memory: the other side was rejected, and may ask again
 * - RPMA_E_PROVIDER: rdma_get_cm_event(3) or rdma_ack_cm_event(3) failed, no RDMA device
 *   serves the address, or the completion queues or the QP can't be made: the log says
 *   which. Mostly a size of cfg is more than the device allows, or all QPs are in use:
 *   compare with max_qp, max_qp_wr and max_cqe of ibv_devinfo(1).
 */
int rpma_ep_next_conn_req(struct rpma_ep *ep,
                          const struct rpma_conn_cfg *cfg,
                          struct rpma_conn_req **req_ptr);

/**
 * Prepares a connection to an address and a port, each a name or a number.
 *
 * The other side listens there. A cfg that is NULL stands for the defaults of
 * rpma_conn_cfg_new().
 *
 * The request is the caller's, for rpma_conn_req_connect() to send or
 * rpma_conn_req_delete() to drop, before the peer is released.
 *
 * Thread-safe.
 *
 * Errors, with *req_ptr as it was:
 * - RPMA_E_INVAL: peer, addr, port or req_ptr is NULL, or cfg wants a shared
 *   completion channel with a shared RQ that has its own CQ
 * - RPMA_E_NOMEM: out of memory: nothing was made; the call can be repeated
 * - RPMA_E_PROVIDER: rdma_getaddrinfo(3), rdma_create_id(3), rdma_resolve_addr(3) or
 *   rdma_resolve_route(3) failed, no RDMA device serves the address, or the completion
 *   queues or the QP can't be made: the log says which. "Connection timed out" asks for
 *   an address that the device of the peer reaches, or for more time, by
 *   rpma_conn_cfg_set_timeout(); if the queues can't be made, mostly a size of cfg is
 *   more than the device allows.
 */
int rpma_conn_req_new(struct rpma_peer *peer,
                      const char *addr,
                      const char *port,
                      const struct rpma_conn_cfg *cfg,
                      struct rpma_conn_req **req_ptr);

/**
 * Drops a connection request.
 *
 * *req_ptr is set to NULL; one that is NULL already is fine.
 *
 * The other side of an incoming request is rejected: it gets RPMA_CONN_REJECTED.
 *
 * Thread-safe on separate requests.
 *
 * Errors:
 * - RPMA_E_INVAL: req_ptr is NULL
 * - RPMA_E_PROVIDER: ibv_destroy_cq(3), ibv_destroy_comp_channel(3), rdma_reject(3) or
 *   rdma_destroy_id(3) failed, for the reason that the log gives; the request is gone
 *   all the same
 */
int rpma_conn_req_delete(struct rpma_conn_req **req_ptr);

/**
 * Makes a connection of a request.
 *
 * An outgoing request is sent, an incoming one accepted.
 *
 * pdata is for the other side: a struct rpma_conn_private_data, or NULL for none.
 * The data is copied.
 *
 * *req_ptr is consumed and set to NULL, also where the function fails.
 *
 * The connection is the caller's, to be released by rpma_conn_delete(). It is usable
 * once rpma_conn_next_event() gives RPMA_CONN_ESTABLISHED.
 *
 * Thread-safe on separate requests.
 *
 * Errors, with *conn_ptr as it was:
 * - RPMA_E_INVAL: req_ptr, *req_ptr or conn_ptr is NULL, or pdata has no pointer
 *   or no length
 * - RPMA_E_NOMEM: out of memory: the request is gone all the same, and a new one can be
 *   made
 * - RPMA_E_PROVIDER: rdma_create_event_channel(3), rdma_migrate_id(3), rdma_accept(3),
 *   rdma_connect(3) or ibv_reg_mr(3) failed, for the reason that the log gives. "Invalid
 *   argument" of rdma_connect or rdma_accept is mostly private data that is longer than
 *   the device can carry: 56 bytes of a request go anywhere. Whether the other side is
 *   there is not known yet: that tells rpma_conn_next_event().
 */
int rpma_conn_req_connect(struct rpma_conn_req **req_ptr,
                          const struct rpma_conn_private_data *pdata,
                          struct rpma_conn **conn_ptr);

/**
 * Posts a buffer for a message before the connection is made.
 *
 * So the first message finds one. The buffer is len bytes of dst from offset on.
 *
 * op_context comes back as wr_id of the completion; until then the memory may be
 * written and the region must stay registered.
 *
 * Not thread-safe on one request.
 *
 * Errors:
 * - RPMA_E_INVAL: req or dst is NULL, or len is 2^32 or more
 * - RPMA_E_PROVIDER: ibv_post_recv(3) failed: mostly the receive queue is full, which
 *   rpma_conn_cfg_set_rq_size() makes longer
 */
int rpma_conn_req_recv(struct rpma_conn_req *req,
                       struct rpma_mr_local *dst,
                       size_t offset,
                       size_t len,
                       const void *op_context);

/**
 * Gives the private data that came with an incoming request.
 *
 * It is a struct rpma_conn_private_data: pointer NULL and length 0 if none came. The
 * data lives as long as the request or the connection made of it. It may be longer than
 * what was sent, with zeros at the end.
 *
 * Anyone on the network may have changed it: it is no secure way to tell anything.
 *
 * Not thread-safe on one request.
 *
 * Errors, with *pdata as it was:
 * - RPMA_E_INVAL: req or pdata is NULL
 */
int rpma_conn_req_get_private_data(const struct rpma_conn_req *req,
                                   struct rpma_conn_private_data *pdata);

/**
 * Gives the descriptor that is readable when rpma_conn_next_event() has an event.
 *
 * It is the library's, not to be read or closed; it may be made non-blocking.
 *
 * Thread-safe.
 *
 * Errors, with *fd as it was:
 * - RPMA_E_INVAL: conn or fd is NULL
 */
int rpma_conn_get_event_fd(const struct rpma_conn *conn, int *fd);

/**
 * Takes the next event of a connection.
 *
 * *event is one of enum rpma_conn_event.
 *
 * It waits for one unless the descriptor is non-blocking: see rpma_conn_get_event_fd().
 *
 * Not thread-safe on one connection.
 *
 * Errors, with *event as it was:
 * - RPMA_E_INVAL: conn or event is NULL
 * - RPMA_E_NO_EVENT: there is no event: wait until the descriptor is readable
 * - RPMA_E_NOMEM: out of memory for the private data of the other side: the event is
 *   taken, so delete the connection and begin again
 * - RPMA_E_PROVIDER: rdma_get_cm_event(3) or rdma_ack_cm_event(3) failed, for the reason
 *   that the log gives. "Interrupted system call" is a signal: call it again.
 * - RPMA_E_UNKNOWN: the event is none of those that a connection can have; the log names
 *   it
 */
int rpma_conn_next_event(struct rpma_conn *conn, enum rpma_conn_event *event);

/**
 * Gives the private data of the other side of a connection.
 *
 * It is a struct rpma_conn_private_data: pointer NULL and length 0 if there is none.
 * The data lives as long as the connection. It may be longer than what was sent, with
 * zeros at the end.
 *
 * An accepting side has it from the request on, a requesting side once the connection is
 * established. Anyone on the network may have changed it: it is no secure way to tell
 * anything.
 *
 * Thread-safe.
 *
 * Errors, with *pdata as it was:
 * - RPMA_E_INVAL: conn or pdata is NULL
 */
int rpma_conn_get_private_data(const struct rpma_conn *conn, struct rpma_conn_private_data *pdata);

/**
 * Lets a connection know what the other side has told about itself.
 *
 * Without it no flush to persistence is possible. The configuration stays the caller's,
 * and may be released at once.
 *
 * Thread-safe.
 *
 * Errors:
 * - RPMA_E_INVAL: conn or pcfg is NULL
 */
int rpma_conn_apply_remote_peer_cfg(struct rpma_conn *conn, const struct rpma_peer_cfg *pcfg);

/**
 * Gives the number of the QP of a connection, which is qp_num of its completions.
 *
 * Thread-safe.
 *
 * Errors, with *qp_num as it was:
 * - RPMA_E_INVAL: conn or qp_num is NULL
 */
int rpma_conn_get_qp_num(const struct rpma_conn *conn, uint32_t *qp_num);

/**
 * Gives the CQ of a connection: that of all its operations, or of all but receives if
 * those have a CQ of their own.
 *
 * It lives as long as the connection and is not the caller's.
 *
 * Thread-safe.
 *
 * Errors, with *cq_ptr as it was:
 * - RPMA_E_INVAL: conn or cq_ptr is NULL
 */
int rpma_conn_get_cq(const struct rpma_conn *conn, struct rpma_cq **cq_ptr);

/**
 * Gives the CQ for receives alone, NULL if the connection has none.
 *
 * It lives as long as the connection and is not the caller's.
 *
 * Thread-safe.
 *
 * Errors, with *rcq_ptr as it was:
 * - RPMA_E_INVAL: conn or rcq_ptr is NULL
 */
int rpma_conn_get_rcq(const struct rpma_conn *conn, struct rpma_cq **rcq_ptr);

/**
 * Gives the descriptor that is readable when rpma_conn_wait() has an event.
 *
 * There is one if the CQs of the connection share a channel. It is the library's, not to
 * be read or closed; it may be made non-blocking.
 *
 * Thread-safe.
 *
 * Errors, with *fd as it was:
 * - RPMA_E_INVAL: conn or fd is NULL
 * - RPMA_E_NOT_SHARED_CHNL: the channel is not shared: use rpma_cq_get_fd(), or ask for
 *   one by rpma_conn_cfg_set_compl_channel()
 */
int rpma_conn_get_compl_fd(const struct rpma_conn *conn, int *fd);

/**
 * Waits for an event of either CQ of a connection, on the channel that they share.
 *
 * The event is acknowledged. Collect all completions of *cq by rpma_cq_get_wc() then.
 * It may be that there are none left.
 *
 * is_rcq tells whether *cq is that for receives alone, and may be NULL. flags are
 * ignored. The function returns at once with an error where the descriptor, which
 * rpma_conn_get_compl_fd() gives, is non-blocking and there is no event.
 *
 * Thread-safe as far as ibv_get_cq_event(3) is.
 *
 * Errors:
 * - RPMA_E_INVAL: conn or cq is NULL
 * - RPMA_E_NOT_SHARED_CHNL: the channel is not shared: use rpma_cq_wait(), or ask for
 *   one by rpma_conn_cfg_set_compl_channel()
 * - RPMA_E_NO_COMPLETION: there is no event, or a signal came first: wait until the
 *   descriptor is readable, or call it again
 * - RPMA_E_UNKNOWN: the event is of neither CQ
 * - RPMA_E_PROVIDER: ibv_req_notify_cq(3) failed, for the reason that the log gives;
 *   *cq is NULL then
 */
int rpma_conn_wait(struct rpma_conn *conn, int flags, struct rpma_cq **cq, bool *is_rcq);

/**
 * Closes a connection.
 *
 * It is also how a side agrees that the other one has closed it.
 *
 * RPMA_CONN_CLOSED of rpma_conn_next_event() tells when it is done. Operations under way
 * complete with IBV_WC_WR_FLUSH_ERR.
 *
 * Thread-safe on separate connections.
 *
 * Errors:
 * - RPMA_E_INVAL: conn is NULL
 * - RPMA_E_PROVIDER: rdma_disconnect(3) failed, as it does where there was no
 *   connection; delete it all the same
 */
int rpma_conn_disconnect(struct rpma_conn *conn);

/**
 * Releases a connection with its CQs.
 *
 * *conn_ptr is set to NULL; one that is NULL already is fine.
 *
 * Close it before by rpma_conn_disconnect(), if it was established and is not lost. Its
 * CQs and private data are gone with it; regions and a shared RQ stay.
 *
 * Thread-safe on separate connections.
 *
 * Errors:
 * - RPMA_E_INVAL: conn_ptr is NULL, or munmap(2) failed
 * - RPMA_E_PROVIDER: ibv_dereg_mr(3), ibv_destroy_cq(3), ibv_destroy_comp_channel(3) or
 *   rdma_destroy_id(3) failed, for the reason that the log gives; the connection is gone
 *   all the same
 */
int rpma_conn_delete(struct rpma_conn **conn_ptr);

/**
 * Reads memory of the other side into local memory.
 *
 * len bytes from src_offset of src on go to dst_offset of dst on; with dst
 * and src NULL and the offsets and len 0, none do.
 *
 * flags is one of RPMA_F_COMPLETION_*.
 *
 * op_context comes back as wr_id of the completion; until then the memory may be
 * written and the region must stay registered. That the ranges are within their regions
 * is left for the device to check, which completes the operation with an error and
 * breaks the connection.
 *
 * Thread-safe as far as ibv_post_send(3) is.
 *
 * Errors:
 * - RPMA_E_INVAL: conn is NULL, flags are 0, one of dst and src is NULL, both
 *   are while an offset or len is not 0, or len is 2^32 or more
 * - RPMA_E_PROVIDER: ibv_post_send(3) failed: mostly the send queue is full. Collect
 *   completions, or make it longer by rpma_conn_cfg_set_sq_size(); operations that
 *   complete only on error leave the queue when a later one has completed.
 */
int rpma_read(struct rpma_conn *conn,
              struct rpma_mr_local *dst,
              size_t dst_offset,
              const struct rpma_mr_remote *src,
              size_t src_offset,
              size_t len,
              int flags,
              const void *op_context);

/**
 * Writes local memory to memory of the other side.
 *
 * len bytes from src_offset of src on go to dst_offset of dst on; with dst
 * and src NULL and the offsets and len 0, none do.
 *
 * flags is one of RPMA_F_COMPLETION_*.
 *
 * op_context comes back as wr_id of the completion; until then the memory must stay
 * as it is and the region registered. A completion does not say that the data is visible
 * or persistent there: see rpma_flush(). That the ranges are within their regions is
 * left for the device to check, which completes the operation with an error and breaks
 * the connection.
 *
 * Thread-safe as far as ibv_post_send(3) is.
 *
 * Errors:
 * - RPMA_E_INVAL: conn is NULL, flags are 0, one of dst and src is NULL, both
 *   are while an offset or len is not 0, or len is 2^32 or more
 * - RPMA_E_PROVIDER: ibv_post_send(3) failed: mostly the send queue is full. Collect
 *   completions, or make it longer by rpma_conn_cfg_set_sq_size(); operations that
 *   complete only on error leave the queue when a later one has completed.
 */
int rpma_write(struct rpma_conn *conn,
               struct rpma_mr_remote *dst,
               size_t dst_offset,
               const struct rpma_mr_local *src,
               size_t src_offset,
               size_t len,
               int flags,
               const void *op_context);

/**
 * Writes as rpma_write() does, with a number that completes a receive of the other side.
 *
 * The number, imm, is imm_data of the completion there, in network byte order. The
 * other side must have posted a receive for it.
 *
 * Thread-safe as far as ibv_post_send(3) is.
 *
 * Errors: as rpma_write()
 */
int rpma_write_with_imm(struct rpma_conn *conn,
                        struct rpma_mr_remote *dst,
                        size_t dst_offset,
                        const struct rpma_mr_local *src,
                        size_t src_offset,
                        size_t len,
                        int flags,
                        uint32_t imm,
                        const void *op_context);

/**
 * Writes 8 bytes to memory of the other side, all at once.
 *
 * They are those at src, which are copied and may change as soon as the function
 * returns, and go to dst_offset of dst, a multiple of RPMA_ATOMIC_WRITE_ALIGNMENT.
 * The registered memory must begin at such a multiple too.
 *
 * Where the device has no atomic write, an RDMA write does for it that waits for the
 * reads before it to be done.
 *
 * flags is one of RPMA_F_COMPLETION_*.
 *
 * op_context comes back as wr_id of the completion.
 *
 * Thread-safe as far as ibv_post_send(3) is.
 *
 * Errors:
 * - RPMA_E_INVAL: conn, dst or src is NULL, dst_offset is no multiple of
 *   RPMA_ATOMIC_WRITE_ALIGNMENT, or flags are 0
 * - RPMA_E_PROVIDER: ibv_post_send(3) or ibv_wr_complete(3) failed: mostly the send
 *   queue is full. Collect completions, or make it longer by
 *   rpma_conn_cfg_set_sq_size().
 */
int rpma_atomic_write(struct rpma_conn *conn,
                      struct rpma_mr_remote *dst,
                      size_t dst_offset,
                      const char *src,
                      int flags,
                      const void *op_context);

/**
 * Flushes memory of the other side.
 *
 * What this connection wrote before to the len bytes from dst_offset of dst on is
 * visible or persistent once the flush has completed.
 *
 * type is one of enum rpma_flush_type.
 *
 * Persistence needs the word of the other side, by rpma_conn_apply_remote_peer_cfg().
 *
 * Where the device has no flush, an RDMA read of up to 8 bytes at dst_offset does for
 * it; it is up to the other side's platform that persistence follows, which it tells by
 * its peer configuration.
 *
 * flags is one of RPMA_F_COMPLETION_*.
 *
 * op_context comes back as wr_id of the completion.
 *
 * Thread-safe as far as ibv_post_send(3) is.
 *
 * Errors:
 * - RPMA_E_INVAL: conn or dst is NULL, type is none of its enum, or flags are 0
 * - RPMA_E_NOSUPP: the memory was not registered for this type of flush, which
 *   rpma_mr_remote_get_flush_type() tells; or type is RPMA_FLUSH_TYPE_PERSISTENT and
 *   no peer configuration with direct write to persistent memory was applied to the
 *   connection
 * - RPMA_E_PROVIDER: ibv_post_send(3) or ibv_wr_complete(3) failed: mostly the send
 *   queue is full. Collect completions, or make it longer by
 *   rpma_conn_cfg_set_sq_size().
 */
int rpma_flush(struct rpma_conn *conn,
               struct rpma_mr_remote *dst,
               size_t dst_offset,
               size_t len,
               enum rpma_flush_type type,
               int flags,
               const void *op_context);

/**
 * Sends a message to the other side.
 *
 * The message is len bytes of src from offset on, or none with src NULL and
 * offset and len 0. The other side must have posted a buffer for it, by rpma_recv()
 * or rpma_conn_req_recv(), that is long enough.
 *
 * flags is one of RPMA_F_COMPLETION_*.
 *
 * op_context comes back as wr_id of the completion; until then the memory must stay
 * as it is and the region registered.
 *
 * Thread-safe as far as ibv_post_send(3) is.
 *
 * Errors:
 * - RPMA_E_INVAL: conn is NULL, flags are 0, src is NULL while offset or len
 *   is not 0, or len is 2^32 or more
 * - RPMA_E_PROVIDER: ibv_post_send(3) failed: mostly the send queue is full. Collect
 *   completions, or make it longer by rpma_conn_cfg_set_sq_size(); operations that
 *   complete only on error leave the queue when a later one has completed.
 */
int rpma_send(struct rpma_conn *conn,
              const struct rpma_mr_local *src,
              size_t offset,
              size_t len,
              int flags,
              const void *op_context);

/**
 * Sends as rpma_send() does, with a number.
 *
 * The number, imm, is imm_data of the completion there, in network byte order.
 *
 * Thread-safe as far as ibv_post_send(3) is.
 *
 * Errors: as rpma_send()
 */
int rpma_send_with_imm(struct rpma_conn *conn,
                       const struct rpma_mr_local *src,
                       size_t offset,
                       size_t len,
                       int flags,
                       uint32_t imm,
                       const void *op_context);

/**
 * Posts a buffer for a message of the other side.
 *
 * The buffer is len bytes of dst from offset on, or none with dst NULL and
 * offset and len 0.
 *
 * The buffers are taken in no order that can be relied on. op_context comes back as
 * wr_id of the completion; until then the memory may be written and the region must
 * stay registered.
 *
 * Thread-safe as far as ibv_post_recv(3) is.
 *
 * Errors:
 * - RPMA_E_INVAL: conn is NULL, dst is NULL while offset or len is not 0, or
 *   len is 2^32 or more
 * - RPMA_E_PROVIDER: ibv_post_recv(3) failed: mostly the receive queue is full, which
 *   rpma_conn_cfg_set_rq_size() makes longer
 */
int rpma_recv(struct rpma_conn *conn,
              struct rpma_mr_local *dst,
              size_t offset,
              size_t len,
              const void *op_context);

/**
 * Gives the descriptor that is readable when rpma_cq_wait() has an event.
 *
 * If the CQs of a connection share their channel, it is that of
 * rpma_conn_get_compl_fd(). It is the library's, not to be read or closed; it may be
 * made non-blocking.
 *
 * Thread-safe.
 *
 * Errors, with *fd as it was:
 * - RPMA_E_INVAL: cq or fd is NULL
 */
int rpma_cq_get_fd(const struct rpma_cq *cq, int *fd);

/**
 * Waits for an event of a CQ.
 *
 * The event is acknowledged. Collect all completions by rpma_cq_get_wc() then. It may be
 * that there are none left.
 *
 * The function returns at once with an error where the descriptor, which
 * rpma_cq_get_fd() gives, is non-blocking and there is no event.
 *
 * Thread-safe as far as ibv_get_cq_event(3) is.
 *
 * Errors:
 * - RPMA_E_INVAL: cq is NULL
 * - RPMA_E_NO_COMPLETION: there is no event, or a signal came first: wait until the
 *   descriptor is readable, or call it again
 * - RPMA_E_PROVIDER: ibv_req_notify_cq(3) failed, for the reason that the log gives
 * - RPMA_E_SHARED_CHANNEL: the channel is shared: use rpma_conn_wait()
 */
int rpma_cq_wait(struct rpma_cq *cq);

/**
 * Takes completions from a CQ, without waiting, as ibv_poll_cq(3) does.
 *
 * wc is an array of num_entries elements, which is how many are taken at most.
 *
 * num_entries_got is how many there were; it may be NULL if num_entries is 1. Of a
 * completion whose status is not IBV_WC_SUCCESS only wr_id, status, qp_num and
 * vendor_err are valid: the operation has failed, and the connection is broken.
 *
 * Thread-safe as far as ibv_poll_cq(3) is.
 *
 * Errors:
 * - RPMA_E_INVAL: cq or wc is NULL, num_entries is less than 1, or it is more than
 *   1 and num_entries_got is NULL
 * - RPMA_E_NO_COMPLETION: there is none: wait by rpma_cq_wait() or rpma_conn_wait(), or
 *   ask again
 * - RPMA_E_PROVIDER: ibv_poll_cq(3) failed, for the reason that the log gives
 * - RPMA_E_UNKNOWN: ibv_poll_cq(3) returned more than it was asked for
 */
int rpma_cq_get_wc(struct rpma_cq *cq, int num_entries, struct ibv_wc *wc, int *num_entries_got);

#ifdef __cplusplus
}
#endif

#endif /* LIBRPMA_H */
