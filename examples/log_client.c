/*
 * log_client.c -- the writer of a log with replicas: appends the lines of its standard input.
 *
 *   log_client ADDR PORT [ADDR PORT [ADDR PORT]]
 *
 * One address and port for each replica. It first shows what is in the log, and then every line once
 * that is committed: persistent on more than half of the replicas. What was shown is never lost, as
 * long as more than half of them have their memory; fewer may be away, and come back, at any time.
 *
 * Why that holds:
 * - Two halves and more have a replica in common. So whoever talks to that many sees all that is
 *   committed.
 * - A replica serves the newest writer alone. A writer that others took over from cannot commit.
 * - A new writer takes an epoch above all it sees, and tells more than half before it appends. So no
 *   two append with the same. Of the logs it sees it takes the one whose last record has the highest
 *   epoch, and of those the longest: it has all that is committed, if not more. That more becomes
 *   committed with the first record of the new epoch, before which nothing is shown.
 */
#include "log.h"
#include <time.h>

#define MAX_REPLICAS 3
#define AGAIN_MS 200 /* how soon a replica that is away is tried again */
#define QUEUE 16
#define RESERVED 4096 /* room at the end of the log for writers to begin: else a full one could not be read */

struct replica {
	const char *addr, *port;
	struct rpma_conn *conn; /* NULL: it is away */
	struct rpma_cq *cq;
	struct rpma_mr_remote *remote;
	struct log *copy; /* what it had when it came */
	uint64_t last_epoch; /* of the records in that */
	uint64_t mark; /* up to here it has the records of the log */
	int64_t tried_at;
};

struct writer {
	struct rpma_peer *peer;
	struct rpma_conn_cfg *cfg;
	struct rpma_mr_local *log_mr, *copies_mr;
	struct replica replicas[MAX_REPLICAS];
	int n_replicas;
	bool deposed; /* another writer has taken over */
	int count; /* of lines in the log */
};

/* What the log is to be; the replicas follow. Its epoch is this writer's. */
static struct log the_log;
static struct log copies[MAX_REPLICAS];

static bool majority(const struct writer *w, int n)
{
	return n > w->n_replicas / 2;
}

static int64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* ---- one replica ---- */

/* Without it, for now. It may have some of what was sent last, or all of it, or none. */
static void drop(struct replica *r)
{
	int ret = rpma_mr_remote_delete(&r->remote), also = rpma_conn_delete(&r->conn);

	if (ret != 0 || also != 0)
		fail("releasing a connection: %s", rpma_err_2str(ret != 0 ? ret : also));
	fprintf(stderr, "replica %s %s is away\n", r->addr, r->port);
}

static int read_copy(struct writer *w, struct replica *r, size_t offset, size_t len)
{
	size_t place = (size_t)((char *)r->copy - (char *)copies) + offset;
	struct ibv_wc wc;

	TRY(rpma_read(r->conn, w->copies_mr, place, r->remote, offset, len, RPMA_F_COMPLETION_ALWAYS, r));
	return expect_completion(r->conn, r->cq, r, &wc);
}

/* Connects, and reads the replica's log up to its mark. */
static int fetch(struct writer *w, struct replica *r)
{
	r->tried_at = now_ms();
	if (connect_to(w->peer, r->addr, r->port, w->cfg, &r->conn) != 0 ||
			take_offer(r->conn, sizeof(struct log), &r->remote) != 0)
		return -1;
	TRY(rpma_conn_get_cq(r->conn, &r->cq));
	if (read_copy(w, r, 0, offsetof(struct log, records)) != 0)
		return -1;
	if (is_new(r->copy)) {
		memset(r->copy, 0, offsetof(struct log, records));
		r->last_epoch = 0;
		return 0;
	}
	if (r->copy->mark > sizeof(r->copy->records))
		return fail("replica %s %s: its mark is beyond its end", r->addr, r->port);
	if (r->copy->mark > 0 && read_copy(w, r, offsetof(struct log, records), r->copy->mark) != 0)
		return -1;
	if (!check_log(r->copy, &r->last_epoch))
		return fail("replica %s %s has no good log", r->addr, r->port);
	return 0;
}

/* Puts a number into the replica's memory. */
static int post_number(struct replica *r, size_t offset, uint64_t number)
{
	char bytes[sizeof(number)];

	memcpy(bytes, &number, sizeof(number));
	TRY(rpma_atomic_write(r->conn, r->remote, offset, bytes, RPMA_F_COMPLETION_ON_ERROR, r));
	return 0;
}

static int post_flush(struct replica *r, size_t offset, size_t len, int flags)
{
	TRY(rpma_flush(r->conn, r->remote, offset, len, RPMA_FLUSH_TYPE_PERSISTENT, flags, r));
	return 0;
}

/* The last operation of what was posted is a flush, and the only one whose success is told. */
static int await_flush(struct replica *r)
{
	struct ibv_wc wc;

	return expect_completion(r->conn, r->cq, r, &wc);
}

/*
 * Makes a replica that has come this writer's: it gets the epoch, and loses what the log has not. Its
 * last writer may not have flushed all it wrote, so what it keeps is flushed as well. A new log is one
 * only when the rest is in place.
 */
static int claim(struct replica *r)
{
	size_t kept = offsetof(struct log, records) + r->mark;

	if (post_number(r, offsetof(struct log, epoch), the_log.epoch) != 0 ||
			post_number(r, offsetof(struct log, mark), r->mark) != 0 ||
			post_flush(r, 0, kept, RPMA_F_COMPLETION_ON_ERROR) != 0)
		return -1;
	TRY(rpma_atomic_write(r->conn, r->remote, offsetof(struct log, magic), LOG_MAGIC, RPMA_F_COMPLETION_ON_ERROR, r));
	if (post_flush(r, 0, kept, RPMA_F_COMPLETION_ALWAYS) != 0)
		return -1;
	return await_flush(r);
}

/*
 * Sends the records that the replica lacks. All of it goes out at once: the device there carries an
 * atomic write out only after the flush before it, so the mark never is ahead of the records.
 */
static int post_records(struct writer *w, struct replica *r)
{
	size_t place = offsetof(struct log, records) + r->mark, len = the_log.mark - r->mark;

	TRY(rpma_write(r->conn, r->remote, place, w->log_mr, place, len, RPMA_F_COMPLETION_ON_ERROR, r));
	if (post_flush(r, place, len, RPMA_F_COMPLETION_ON_ERROR) != 0 ||
			post_number(r, offsetof(struct log, mark), the_log.mark) != 0)
		return -1;
	return post_flush(r, offsetof(struct log, mark), sizeof(the_log.mark), RPMA_F_COMPLETION_ALWAYS);
}

/* Up to where the replica's records are those of the log. */
static uint64_t common_mark(const struct replica *r)
{
	uint64_t mine = 0, its = 0, same;
	struct record record;

	do {
		same = mine;
		if (next_record(&the_log, &mine, &record) == NULL || next_record(r->copy, &its, &record) == NULL)
			return same;
	} while (mine == its && memcmp(the_log.records + same, r->copy->records + same, mine - same) == 0);
	return same;
}

/* Takes in a replica that was away. It gets what it has missed with the next record. */
static void take_in(struct writer *w, struct replica *r)
{
	int ret = fetch(w, r);

	if (ret == 0 && r->copy->epoch > the_log.epoch) {
		w->deposed = true;
		ret = fail("another writer has taken over");
	}
	if (ret == 0) {
		r->mark = common_mark(r);
		ret = claim(r);
	}
	if (ret == 0)
		printf("replica %s %s is back\n", r->addr, r->port);
	else
		drop(r);
}

/* ---- all of them ---- */

/* Sends the replicas what they lack, to all of them at once. How many have all of the log then? */
static int send_records(struct writer *w)
{
	int up_to_date = 0;

	for (int i = 0; i < w->n_replicas; i++) {
		struct replica *r = &w->replicas[i];

		if (r->conn != NULL && r->mark != the_log.mark && post_records(w, r) != 0)
			drop(r);
	}
	for (int i = 0; i < w->n_replicas; i++) {
		struct replica *r = &w->replicas[i];

		if (r->conn != NULL && r->mark != the_log.mark && await_flush(r) != 0)
			drop(r);
		if (r->conn != NULL) {
			r->mark = the_log.mark;
			up_to_date++;
		}
	}
	return up_to_date;
}

static void take_in_who_is_back(struct writer *w)
{
	for (int i = 0; i < w->n_replicas; i++) {
		struct replica *r = &w->replicas[i];

		if (r->conn == NULL && now_ms() - r->tried_at >= AGAIN_MS && !w->deposed)
			take_in(w, r);
	}
}

/* Appends a record, and gives on how many replicas it is; -1 if not on enough of them in time. */
static int append(struct writer *w, const char *text, size_t len)
{
	struct record record = {the_log.epoch, len};
	size_t size = sizeof(record) + ALIGNED(len);
	char *place = the_log.records + the_log.mark;
	int64_t start = now_ms();
	int n;

	if (the_log.mark + size > sizeof(the_log.records) - (len != 0 ? RESERVED : 0))
		return fail("the log is full");
	memcpy(place, &record, sizeof(record));
	memcpy(place + sizeof(record), text, len);
	the_log.mark += size; /* what is behind the text are zeros */

	for (;;) {
		take_in_who_is_back(w);
		n = send_records(w);
		if (w->deposed)
			return -1;
		if (majority(w, n))
			return n;
		if (now_ms() - start >= TIMEOUT_MS)
			return fail("for too long too few replicas are there");
		printf("%d of %d replicas are not enough\n", n, w->n_replicas);
		poll(NULL, 0, AGAIN_MS);
	}
}

/* Takes the best log there is, and makes it that of all replicas that are there. */
static int recover(struct writer *w)
{
	struct replica *best = NULL;
	uint64_t at = 0, epoch = 0;
	struct record record;
	const char *text;
	int n = 0;

	for (int i = 0; i < w->n_replicas; i++) {
		struct replica *r = &w->replicas[i];

		if (fetch(w, r) != 0) {
			drop(r);
			continue;
		}
		n++;
		epoch = r->copy->epoch > epoch ? r->copy->epoch : epoch;
		if (best == NULL || r->last_epoch > best->last_epoch ||
				(r->last_epoch == best->last_epoch && r->copy->mark > best->copy->mark))
			best = r;
	}
	if (!majority(w, n))
		return fail("%d of %d replicas are not enough", n, w->n_replicas);
	the_log.epoch = epoch + 1;
	the_log.mark = best->copy->mark;
	memcpy(the_log.records, best->copy->records, the_log.mark);

	/* Who is lost from here on cannot be taken in again before the epoch is surely this writer's. */
	for (int i = 0; i < w->n_replicas; i++) {
		struct replica *r = &w->replicas[i];

		if (r->conn == NULL)
			continue;
		r->mark = common_mark(r);
		if (claim(r) != 0) {
			drop(r);
			n--;
		}
	}
	if (!majority(w, n))
		return fail("%d of %d replicas are not enough", n, w->n_replicas);
	if (append(w, "", 0) < 0)
		return -1;

	while ((text = next_record(&the_log, &at, &record)) != NULL)
		if (record.length != 0)
			printf("%d recovered: %.*s\n", ++w->count, (int)record.length, text);
	printf("epoch %" PRIu64 "\n", the_log.epoch);
	return 0;
}

static int append_input(struct writer *w)
{
	char *line = NULL;
	size_t size = 0;
	ssize_t len;
	int n = 0;

	while (n >= 0 && (len = getline(&line, &size, stdin)) > 0) {
		if (line[len - 1] == '\n')
			len--;
		if (len == 0)
			continue;
		n = append(w, line, (size_t)len);
		if (n >= 0)
			printf("%d committed on %d of %d: %.*s\n", ++w->count, n, w->n_replicas, (int)len, line);
	}
	if (n >= 0 && ferror(stdin))
		n = fail("standard input: %s", strerror(errno));
	free(line);
	return n < 0 ? -1 : 0;
}

static int run(struct writer *w)
{
	/* By any replica that can be reached; they are taken to be reached by the same device. */
	for (int i = 0; i < w->n_replicas && w->peer == NULL; i++)
		if (open_peer(w->replicas[i].addr, RPMA_UTIL_IBV_CONTEXT_REMOTE, &w->peer) != 0)
			fprintf(stderr, "no way to %s\n", w->replicas[i].addr);
	if (w->peer == NULL)
		return -1;
	TRY(rpma_mr_reg(w->peer, &the_log, sizeof(the_log), RPMA_MR_USAGE_WRITE_SRC, &w->log_mr));
	TRY(rpma_mr_reg(w->peer, copies, sizeof(copies), RPMA_MR_USAGE_READ_DST, &w->copies_mr));
	TRY(rpma_conn_cfg_new(&w->cfg));
	TRY(rpma_conn_cfg_set_sq_size(w->cfg, QUEUE));
	TRY(rpma_conn_cfg_set_cq_size(w->cfg, QUEUE));
	return recover(w) == 0 ? append_input(w) : -1;
}

int main(int argc, char *argv[])
{
	static struct writer w;
	int status;

	if (argc < 3 || argc % 2 == 0 || argc > 1 + 2 * MAX_REPLICAS)
		return usage(argv[0], "ADDR PORT [ADDR PORT [ADDR PORT]]");
	for (int i = 0; 2 * i + 1 < argc; i++, w.n_replicas++) {
		w.replicas[i].addr = argv[2 * i + 1];
		w.replicas[i].port = argv[2 * i + 2];
		w.replicas[i].copy = &copies[i];
	}
	status = run(&w);
	for (int i = 0; i < w.n_replicas; i++) {
		RELEASE(status, rpma_mr_remote_delete(&w.replicas[i].remote));
		RELEASE(status, rpma_conn_delete(&w.replicas[i].conn));
	}
	RELEASE(status, rpma_conn_cfg_delete(&w.cfg));
	RELEASE(status, rpma_mr_dereg(&w.copies_mr));
	RELEASE(status, rpma_mr_dereg(&w.log_mr));
	RELEASE(status, rpma_peer_delete(&w.peer));
	return status == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
