/*
 * values.c -- every constant, string and descriptor, and what the configuration
 * objects start with, take and give back.
 */
#include "../common.h"

#define CONSTANT(name) show(#name, "%ld", (long)(name))

static void constants(void)
{
	CONSTANT(RPMA_W_WAIT_FOR_COMPLETION);
	CONSTANT(RPMA_E_UNKNOWN);
	CONSTANT(RPMA_E_NOSUPP);
	CONSTANT(RPMA_E_PROVIDER);
	CONSTANT(RPMA_E_NOMEM);
	CONSTANT(RPMA_E_INVAL);
	CONSTANT(RPMA_E_NO_COMPLETION);
	CONSTANT(RPMA_E_NO_EVENT);
	CONSTANT(RPMA_E_AGAIN);
	CONSTANT(RPMA_E_SHARED_CHANNEL);
	CONSTANT(RPMA_E_NOT_SHARED_CHNL);
	CONSTANT(RPMA_DEFAULT_TIMEOUT_MS);
	CONSTANT(RPMA_UTIL_IBV_CONTEXT_LOCAL);
	CONSTANT(RPMA_UTIL_IBV_CONTEXT_REMOTE);
	CONSTANT(RPMA_MR_USAGE_READ_SRC);
	CONSTANT(RPMA_MR_USAGE_READ_DST);
	CONSTANT(RPMA_MR_USAGE_WRITE_SRC);
	CONSTANT(RPMA_MR_USAGE_WRITE_DST);
	CONSTANT(RPMA_MR_USAGE_FLUSH_TYPE_VISIBILITY);
	CONSTANT(RPMA_MR_USAGE_FLUSH_TYPE_PERSISTENT);
	CONSTANT(RPMA_MR_USAGE_SEND);
	CONSTANT(RPMA_MR_USAGE_RECV);
	CONSTANT(RPMA_CONN_UNDEFINED);
	CONSTANT(RPMA_CONN_ESTABLISHED);
	CONSTANT(RPMA_CONN_CLOSED);
	CONSTANT(RPMA_CONN_LOST);
	CONSTANT(RPMA_CONN_REJECTED);
	CONSTANT(RPMA_CONN_UNREACHABLE);
	CONSTANT(RPMA_F_COMPLETION_ON_ERROR);
	CONSTANT(RPMA_F_COMPLETION_ALWAYS);
	CONSTANT(RPMA_ATOMIC_WRITE_ALIGNMENT);
	CONSTANT(RPMA_FLUSH_TYPE_PERSISTENT);
	CONSTANT(RPMA_FLUSH_TYPE_VISIBILITY);
	CONSTANT(RPMA_LOG_DISABLED);
	CONSTANT(RPMA_LOG_LEVEL_FATAL);
	CONSTANT(RPMA_LOG_LEVEL_ERROR);
	CONSTANT(RPMA_LOG_LEVEL_WARNING);
	CONSTANT(RPMA_LOG_LEVEL_NOTICE);
	CONSTANT(RPMA_LOG_LEVEL_INFO);
	CONSTANT(RPMA_LOG_LEVEL_DEBUG);
	CONSTANT(RPMA_LOG_THRESHOLD);
	CONSTANT(RPMA_LOG_THRESHOLD_AUX);
	CONSTANT(RPMA_LOG_THRESHOLD_MAX);
	CONSTANT(RPMA_LOG_USE_DEFAULT_FUNCTION);
	CONSTANT(sizeof(struct rpma_conn_private_data));
	CONSTANT(offsetof(struct rpma_conn_private_data, len));
}

static void strings(void)
{
	static const int others[] = {INT_MIN, -100010, -100011, -99999, -1, 1, 22, INT_MAX};
	char key[64];

	for (int code = RPMA_E_UNKNOWN; code >= RPMA_E_NOT_SHARED_CHNL; code--) {
		snprintf(key, sizeof(key), "err_2str(%d)", code);
		show(key, "%s", rpma_err_2str(code));
	}
	show("err_2str(0)", "%s", rpma_err_2str(0));
	for (size_t i = 0; i < COUNT(others); i++) {
		snprintf(key, sizeof(key), "err_2str(%d)", others[i]);
		show(key, "%s", rpma_err_2str(others[i]));
		snprintf(key, sizeof(key), "conn_event_2str(%d)", others[i]);
		show(key, "%s",
			rpma_utils_conn_event_2str((enum rpma_conn_event)others[i]));
	}
	for (int event = -3; event <= 8; event++) {
		snprintf(key, sizeof(key), "conn_event_2str(%d)", event);
		show(key, "%s", rpma_utils_conn_event_2str((enum rpma_conn_event)event));
	}
}

/* ---- descriptors ---- */

/* A generator of our own, so that every machine sees the same bytes. */
static uint32_t next_random(void)
{
	static uint32_t x = 0x2545f491;

	x ^= x << 13;
	x ^= x >> 17;
	return x ^= x << 5;
}

static void try_mr_descriptor(const char *what, const void *bytes, size_t size)
{
	struct rpma_mr_remote *mr = NULL;
	size_t mr_size = 0;
	int flush_type = 0;
	/* Just as many bytes as told: one read too many is seen by a memory checker. */
	void *exact = malloc(size ? size : 1);
	char key[128];

	memcpy(exact, bytes, size);
	snprintf(key, sizeof(key), "mr descriptor, %s", what);
	if (TRY_AS(key, rpma_mr_remote_from_descriptor(exact, size, &mr)) == 0) {
		memset(exact, 0, size); /* the object is to have its own copy */
		MUST(rpma_mr_remote_get_size(mr, &mr_size));
		MUST(rpma_mr_remote_get_flush_type(mr, &flush_type));
		show(key, "size=0x%zx flush_type=0x%x", mr_size, (unsigned)flush_type);
		MUST(rpma_mr_remote_delete(&mr));
	}
	if (mr != NULL)
		show(key, "handle not NULL in the end");
	free(exact);
}

static void mr_descriptor(void)
{
	/* address, size, rkey, usage */
	unsigned char d[64] = {
		0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08,
		0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18,
		0x21, 0x22, 0x23, 0x24, 0x30,
	};
	char what[64];

	for (size_t size = 0; size <= sizeof(d); size++) {
		snprintf(what, sizeof(what), "%zu bytes", size);
		try_mr_descriptor(what, d, size);
	}
	for (unsigned usage = 0; usage <= 0xff; usage++) {
		d[20] = (unsigned char)usage;
		snprintf(what, sizeof(what), "usage 0x%02x", usage);
		try_mr_descriptor(what, d, 21);
	}
	for (int fill = 0; fill <= 0xff; fill += 0xff) {
		memset(d, fill, sizeof(d));
		snprintf(what, sizeof(what), "all 0x%02x", (unsigned)fill);
		try_mr_descriptor(what, d, 21);
		try_mr_descriptor(what, d, sizeof(d));
	}
	for (int i = 0; i < 200; i++) {
		size_t size = next_random() % (sizeof(d) + 1);

		for (size_t k = 0; k < sizeof(d); k++)
			d[k] = (unsigned char)(next_random() >> 24);
		snprintf(what, sizeof(what), "random %d, %zu bytes", i, size);
		try_mr_descriptor(what, d, size);
	}
}

static void peer_cfg_descriptor(void)
{
	struct rpma_peer_cfg *cfg = NULL;
	unsigned char d[64], back[8];
	size_t desc_size = 0;
	bool supported;
	char key[64];

	MUST(rpma_peer_cfg_new(&cfg));
	MUST(rpma_peer_cfg_get_direct_write_to_pmem(cfg, &supported));
	show("direct write to pmem at first", "%d", supported);
	MUST(rpma_peer_cfg_get_descriptor_size(cfg, &desc_size));
	show("peer cfg descriptor size", "%zu", desc_size);
	for (int set = 0; set <= 1; set++) {
		TRY(rpma_peer_cfg_set_direct_write_to_pmem(cfg, set));
		memset(back, 0xa5, sizeof(back));
		TRY(rpma_peer_cfg_get_descriptor(cfg, back));
		show("its descriptor", "%s", hex(back, sizeof(back)));
	}
	MUST(rpma_peer_cfg_delete(&cfg));
	show("peer cfg after delete", "%s", cfg == NULL ? "NULL" : "not NULL");
	TRY(rpma_peer_cfg_delete(&cfg));

	for (size_t size = 0; size <= sizeof(d); size++) {
		for (unsigned first = 0; first <= 0xff; first += size == 1 ? 1 : 0x7f) {
			unsigned char *exact = malloc(size ? size : 1);

			memset(exact, 0xff, size);
			exact[0] = (unsigned char)first;
			snprintf(key, sizeof(key), "peer cfg descriptor, %zu bytes from 0x%02x",
					size, first);
			if (TRY_AS(key, rpma_peer_cfg_from_descriptor(exact, size, &cfg)) == 0) {
				MUST(rpma_peer_cfg_get_direct_write_to_pmem(cfg, &supported));
				memset(back, 0xa5, sizeof(back));
				MUST(rpma_peer_cfg_get_descriptor(cfg, back));
				show(key, "%d %s", supported, hex(back, sizeof(back)));
				MUST(rpma_peer_cfg_delete(&cfg));
			} else if (cfg != NULL) {
				show(key, "handle written in failure");
			}
			free(exact);
		}
	}
}

/* ---- configurations ---- */

/* What a setter takes, and what the getter gives then: first as it was made. */
#define SETTING(object, name, type, format, ...) \
	do { \
		static const type values[] = {__VA_ARGS__}; \
		type got; \
		MUST(rpma_##object##_get_##name(cfg, &got)); \
		show(#object " " #name " at first", format, got); \
		for (size_t i = 0; i < COUNT(values); i++) { \
			char key[96]; \
			snprintf(key, sizeof(key), #object " set " #name " " format, values[i]); \
			TRY_AS(key, rpma_##object##_set_##name(cfg, values[i])); \
			MUST(rpma_##object##_get_##name(cfg, &got)); \
			show(#object " get " #name, format, got); \
		} \
	} while (0)

#define SIZES 0, 1, 10, INT_MAX, (uint32_t)INT_MAX + 1, UINT32_MAX

static void conn_cfg(void)
{
	struct rpma_conn_cfg *cfg = NULL;
	struct rpma_srq *srq = OUT;

	TRY(rpma_conn_cfg_new(&cfg));
	SETTING(conn_cfg, timeout, int, "%d", 0, 1, RPMA_DEFAULT_TIMEOUT_MS, INT_MAX, -1, INT_MIN);
	SETTING(conn_cfg, cq_size, uint32_t, "%u", SIZES);
	SETTING(conn_cfg, rcq_size, uint32_t, "%u", SIZES);
	SETTING(conn_cfg, sq_size, uint32_t, "%u", SIZES);
	SETTING(conn_cfg, rq_size, uint32_t, "%u", SIZES);
	SETTING(conn_cfg, compl_channel, bool, "%d", true, true, false, true);
	MUST(rpma_conn_cfg_get_srq(cfg, &srq));
	show("conn_cfg srq at first", "%s", srq == NULL ? "NULL" : "not NULL");
	TRY(rpma_conn_cfg_set_srq(cfg, DUMMY));
	MUST(rpma_conn_cfg_get_srq(cfg, &srq));
	show("conn_cfg srq", "%s", srq == DUMMY ? "as set" : "another");
	TRY(rpma_conn_cfg_set_srq(cfg, NULL));
	MUST(rpma_conn_cfg_get_srq(cfg, &srq));
	show("conn_cfg srq", "%s", srq == DUMMY ? "as set" : "another");
	TRY(rpma_conn_cfg_delete(&cfg));
	show("conn_cfg after delete", "%s", cfg == NULL ? "NULL" : "not NULL");
	TRY(rpma_conn_cfg_delete(&cfg));
}

static void srq_cfg(void)
{
	struct rpma_srq_cfg *cfg = NULL;

	TRY(rpma_srq_cfg_new(&cfg));
	SETTING(srq_cfg, rq_size, uint32_t, "%u", SIZES);
	SETTING(srq_cfg, rcq_size, uint32_t, "%u", SIZES);
	TRY(rpma_srq_cfg_delete(&cfg));
	show("srq_cfg after delete", "%s", cfg == NULL ? "NULL" : "not NULL");
	TRY(rpma_srq_cfg_delete(&cfg));
}

static const struct test_case cases[] = {
	{.name = "constants", .run = constants},
	{.name = "strings", .run = strings},
	{.name = "mr-descriptor", .run = mr_descriptor},
	{.name = "peer-cfg-descriptor", .run = peer_cfg_descriptor},
	{.name = "conn-cfg", .run = conn_cfg},
	{.name = "srq-cfg", .run = srq_cfg},
};

MAIN(cases)
