/* SPDX-License-Identifier: BSD-3-Clause */
/* A library to preload that sends something else than it is told to, for tests of whether that is
 * noticed: the first byte of what is written or sent is another one, a number is one more, and of
 * what is read the second half does not come: a single byte is often what was there by chance. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <librpma.h>
#include <stdlib.h>
#include <string.h>

#define REAL(name) ((__typeof__(&name))real(#name))

static void *real(const char *name)
{
    void *function = dlsym(RTLD_NEXT, name);
    if (!function)
        abort();
    return function;
}

static void spoil(const struct rpma_mr_local *mr, size_t offset)
{
    void *start;
    if (mr && REAL(rpma_mr_get_ptr)(mr, &start) == 0)
        ((unsigned char *)start)[offset] ^= 1;
}

int rpma_read(struct rpma_conn *conn, struct rpma_mr_local *dst, size_t dst_offset,
              const struct rpma_mr_remote *src, size_t src_offset, size_t len, int flags,
              const void *op_context)
{
    return REAL(rpma_read)(conn, dst, dst_offset, src, src_offset, len / 2, flags, op_context);
}

int rpma_write(struct rpma_conn *conn, struct rpma_mr_remote *dst, size_t dst_offset,
               const struct rpma_mr_local *src, size_t src_offset, size_t len, int flags,
               const void *op_context)
{
    spoil(src, src_offset);
    return REAL(rpma_write)(conn, dst, dst_offset, src, src_offset, len, flags, op_context);
}

int rpma_write_with_imm(struct rpma_conn *conn, struct rpma_mr_remote *dst, size_t dst_offset,
                        const struct rpma_mr_local *src, size_t src_offset, size_t len, int flags,
                        uint32_t imm, const void *op_context)
{
    spoil(src, src_offset);
    return REAL(rpma_write_with_imm)(conn, dst, dst_offset, src, src_offset, len, flags, imm + 1,
                                     op_context);
}

int rpma_atomic_write(struct rpma_conn *conn, struct rpma_mr_remote *dst, size_t dst_offset,
                      const char *src, int flags, const void *op_context)
{
    char bytes[8];
    memcpy(bytes, src, sizeof(bytes));
    bytes[0] ^= 1;
    return REAL(rpma_atomic_write)(conn, dst, dst_offset, bytes, flags, op_context);
}

int rpma_send_with_imm(struct rpma_conn *conn, const struct rpma_mr_local *src, size_t offset,
                       size_t len, int flags, uint32_t imm, const void *op_context)
{
    return REAL(rpma_send_with_imm)(conn, src, offset, len, flags, imm + 1, op_context);
}

/* Client and server talk by it too, but not in messages of this length. */
int rpma_send(struct rpma_conn *conn, const struct rpma_mr_local *src, size_t offset, size_t len,
              int flags, const void *op_context)
{
    if (len == 8)
        spoil(src, offset);
    return REAL(rpma_send)(conn, src, offset, len, flags, op_context);
}
