/* SPDX-License-Identifier: BSD-3-Clause */
/* A client that begins as rpma-perf's do, says what it is told to say, and prints how that ends.
 *
 *     stranger ADDRESS PORT KIND [MESSAGE]
 *
 * KIND follows the word in the private data: c for a connection to talk, d for one to measure. */

#include <librpma.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SIZE 65536

static void must(int ret, const char *what)
{
    if (ret) {
        printf("%s: %s\n", what, rpma_err_2str(ret));
        exit(3);
    }
}

int main(int argc, char *argv[])
{
    if (argc < 4)
        return 2;
    static char memory[2 * SIZE];
    struct ibv_context *device;
    struct rpma_peer *peer;
    struct rpma_mr_local *mr;
    struct rpma_conn_req *req;
    struct rpma_conn *conn;
    must(rpma_utils_get_ibv_context(argv[1], RPMA_UTIL_IBV_CONTEXT_REMOTE, &device), "device");
    must(rpma_peer_new(device, &peer), "peer");
    must(rpma_mr_reg(peer, memory, sizeof(memory), RPMA_MR_USAGE_SEND | RPMA_MR_USAGE_RECV, &mr), "mr");
    must(rpma_conn_req_new(peer, argv[1], argv[2], NULL, &req), "request");
    must(rpma_conn_req_recv(req, mr, SIZE, SIZE, NULL), "recv");
    char data[18] = "rpma-perf";
    data[9] = argv[3][0];
    struct rpma_conn_private_data pdata = {data, sizeof(data)};
    must(rpma_conn_req_connect(&req, &pdata, &conn), "connect");
    enum rpma_conn_event event;
    must(rpma_conn_next_event(conn, &event), "event");
    printf("%s\n", rpma_utils_conn_event_2str(event));
    if (event == RPMA_CONN_ESTABLISHED && argc > 4) {
        size_t len = strlen(argv[4]);
        memcpy(memory, argv[4], len);
        must(rpma_send(conn, mr, 0, len, RPMA_F_COMPLETION_ON_ERROR, NULL), "send");
        struct rpma_cq *cq;
        struct ibv_wc wc;
        must(rpma_conn_get_cq(conn, &cq), "cq");
        int ret;
        while ((ret = rpma_cq_get_wc(cq, 1, &wc, NULL)) == RPMA_E_NO_COMPLETION)
            must(rpma_cq_wait(cq), "wait");
        must(ret, "completion");
        if (wc.status == IBV_WC_SUCCESS)
            printf("%.*s\n", (int)wc.byte_len, memory + SIZE);
        else
            printf("%s\n", ibv_wc_status_str(wc.status));
    }
    /* It may be closed already. */
    (void)rpma_conn_disconnect(conn);
    must(rpma_conn_delete(&conn), "delete");
    must(rpma_mr_dereg(&mr), "dereg");
    must(rpma_peer_delete(&peer), "peer");
    return 0;
}
