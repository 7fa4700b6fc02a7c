/*
 * scenarios.c -- the table of all scenarios, in the order in which they run.
 */
#include "recorded.h"

#define ANY_DEVICE(name, run, cfg, clean) \
	{name " on plain", run, "", cfg, clean}, \
	{name " on native", run, "flush atomic", cfg, clean}

#define ANY_CFG(name, run, device) \
	{name " by default", run, device, NULL, false}, \
	{name " with sizes", run, device, "sizes", false}, \
	{name " with huge", run, device, "huge", false}, \
	{name " with zero", run, device, "zero", false}, \
	{name " with rcq", run, device, "rcq", false}, \
	{name " with shared", run, device, "shared", false}, \
	{name " with shared rcq", run, device, "shared rcq", false}, \
	{name " with srq", run, device, "srq", false}, \
	{name " with srq rcq", run, device, "srq rcq", false}, \
	{name " with srq-rcq", run, device, "srq-rcq", false}, \
	{name " with srq-rcq rcq", run, device, "srq-rcq rcq", false}, \
	{name " with shared srq", run, device, "shared srq", false}, \
	{name " with shared srq rcq", run, device, "shared srq rcq", false}, \
	{name " with shared srq-rcq", run, device, "shared srq-rcq", false}

const struct scenario scenarios[] = {
	ANY_DEVICE("utils", utils, NULL, false),
	{"utils on odp", utils, "odp", NULL, false},
	{"utils on odp-write", utils, "odp-write", NULL, false},
	{"utils on odp-read", utils, "odp-read", NULL, false},
	{"utils on odp-rc", utils, "odp-rc", NULL, false},
	{"utils on old", utils, "old", NULL, false},
	{"utils on no-query", utils, "odp no-query", NULL, false},
	{"utils on none", utils, "none", NULL, false},
	{"objects", objects, "", NULL, false},
	ANY_DEVICE("peer", peer, NULL, false),
	{"peer on flush", peer, "flush", NULL, false},
	{"peer on flush-global", peer, "flush-global", NULL, false},
	{"peer on flush-persistent", peer, "flush-persistent", NULL, false},
	{"peer on atomic", peer, "atomic", NULL, false},
	{"peer on odp", peer, "odp", NULL, false},
	{"peer on old", peer, "old", NULL, false},
	{"peer on no-query", peer, "flush atomic no-query", NULL, false},
	ANY_DEVICE("mr", mr, NULL, false),
	{"mr on odp", mr, "odp", NULL, false},
	{"mr on odp native", mr, "odp flush atomic", NULL, false},
	{"mr on odp-write", mr, "odp-write", NULL, false},
	{"mr on iwarp", mr, "iwarp", NULL, false},
	{"mr on old", mr, "old", NULL, false},
	{"mr on no-advice", mr, "no-advice", NULL, false},
	ANY_DEVICE("usages", usages, NULL, true),
	{"usages on odp", usages, "odp", NULL, false},
	{"usages on odp paged", usages, "odp paged", NULL, true},
	{"usages on odp paged native", usages, "odp paged flush atomic", NULL, true},
	{"usages on paged", usages, "paged", NULL, true},
	{"usages on volatile", usages, "volatile flush atomic", NULL, true},
	{"usages on odp paged volatile", usages, "odp paged volatile flush atomic", NULL, true},
	{"usages on volatile full", usages, "volatile full flush atomic", NULL, true},
	{"usages on iwarp", usages, "iwarp", NULL, true},
	{"usages on iwarp native", usages, "iwarp flush atomic", NULL, true},
	{"srq by default", srq, "", "default", false},
	{"srq with cfg", srq, "", "", false},
	{"srq with no-rcq", srq, "", "no-rcq", false},
	{"srq with huge", srq, "", "huge", false},
	{"ep", ep, "", NULL, false},
	{"other_events", other_events, "", NULL, false},
	ANY_CFG("incoming", incoming, ""),
	ANY_CFG("outgoing", outgoing, ""),
	ANY_CFG("accepted", accepted, ""),
	{"accepted on native", accepted, "flush atomic", NULL, false},
	{"accepted on flush", accepted, "flush", NULL, false},
	{"accepted on no-extension", accepted, "flush atomic no-extension", NULL, false},
	{"accepted on atomic", accepted, "atomic", NULL, false},
	{"accepted on odp", accepted, "odp", NULL, false},
	{"accepted on iwarp", accepted, "iwarp", NULL, false},
	ANY_DEVICE("accepted_plain", accepted_plain, NULL, false),
	{"accepted_plain on atomic", accepted_plain, "atomic", NULL, false},
	ANY_CFG("requested", requested, ""),
	{"requested on native", requested, "flush atomic", NULL, false},
	{"requested on flush", requested, "flush", NULL, false},
	{"requested on no-extension", requested, "flush atomic no-extension", NULL, false},
	{"requested on atomic", requested, "atomic", NULL, false},
	{"requested on odp", requested, "odp", NULL, false},
	{"requested on iwarp", requested, "iwarp", NULL, false},
	{"accept_much", accept_much, "", NULL, false},
	{"request_much", request_much, "", NULL, false},
	ANY_DEVICE("bad_connects", bad_connects, NULL, false),
	{"bad_connects on atomic", bad_connects, "atomic", NULL, false},
	{"bad_connects with shared rcq", bad_connects, "", "shared rcq", false},
	ANY_DEVICE("events", events, NULL, false),
	{"waiting by default", waiting, "", NULL, false},
	{"waiting with rcq", waiting, "", "rcq", false},
	{"waiting with shared", waiting, "", "shared", false},
	{"waiting with shared rcq", waiting, "", "shared rcq", false},
	{"waiting with srq-rcq", waiting, "", "srq-rcq", false},
	{"waiting with shared srq", waiting, "", "shared srq", false},
	ANY_DEVICE("ops", ops, NULL, false),
	{"ops with srq", ops, "", "srq", true},
	{"ops with shared rcq", ops, "", "shared rcq", true},
	{"ops on flush", ops, "flush", NULL, false},
	{"ops on atomic", ops, "atomic", NULL, false},
	{"ops on no-extension", ops, "flush atomic no-extension", NULL, false},
	ANY_DEVICE("bad_ops", bad_ops, NULL, false),
	ANY_DEVICE("values", values, NULL, true),
	ANY_DEVICE("flushes", flushes, NULL, false),
	{"announcements", announcements, "", NULL, true},
	{"levels", levels, "", NULL, true},
	{"no_device_to_request", no_device_to_request, "", NULL, false},
	{"no_device_to_accept", no_device_to_accept, "", NULL, false},
	{"long_ops", long_ops, "", NULL, false},
	ANY_DEVICE("end_flushes", end_flushes, NULL, false),
	ANY_DEVICE("unknown_flushes", unknown_flushes, NULL, false),
	{"advice_on_nothing", advice_on_nothing, "", NULL, false},
	{"requested on refuse-flush", requested, "flush atomic refuse-flush", NULL, true},
	{"requested on refuse-ops", requested, "flush atomic refuse-ops", NULL, true},
	{"accepted on refuse-flush", accepted, "flush refuse-flush", NULL, true},
	{"accepted on refuse-ops", accepted, "flush atomic refuse-ops", NULL, true},
	{0},
};
