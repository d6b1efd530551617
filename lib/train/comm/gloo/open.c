/* SPDX-License-Identifier: BSD-3-Clause */
/* Opening a communicator: where this rank listens, and how the ranks find each other. gloo
 * neither authenticates peers nor retries. So the ranks do: an unauthenticated peer that connects
 * first costs one try. */
#include <netdb.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "train/comm/gloo/gloo_internal.h"
#include "train/comm/rank_group.h"

#define KEY_START "berth.gloo.start"
#define TRIES 5
#define CONNECT_MS 5000
/* Other ranks wait longer than rank 0, which reports who is missing. */
#define LATER_MS 5000

extern const struct comm_ops comm_gloo;

/* What each rank says of itself, before it connects to any other. */
struct start {
	char host[64], build[48];
	struct error err; /* why it cannot take part */
};

/* ---- where to listen ---- */

/* The address that this machine has towards another one. No packet is sent. */
static void local_address(const char *towards, char *text, size_t size)
{
	struct addrinfo hints = {.ai_socktype = SOCK_DGRAM}, *found = NULL;
	struct sockaddr_storage own = {0};
	socklen_t length = sizeof own;

	*text = 0;
	if (!towards || !*towards || getaddrinfo(towards, "9", &hints, &found))
		return;

	int fd = socket(found->ai_family, found->ai_socktype | SOCK_CLOEXEC, 0);

	if (fd < 0 || connect(fd, found->ai_addr, found->ai_addrlen) ||
	    getsockname(fd, (struct sockaddr *)&own, &length) ||
	    getnameinfo((struct sockaddr *)&own, length, text, (socklen_t)size, NULL, 0,
			NI_NUMERICHOST))
		*text = 0;
	if (fd >= 0)
		close(fd);
	freeaddrinfo(found);
}

/* The signals are the training thread's. */
static int new_mesh(struct gloo *gloo, const struct comm_request *request, struct error *err)
{
	const char *list = env_get(request->env, "GLOO_SOCKET_IFNAME");
	char interface[32] = "", address[64] = "";
	sigset_t all, before;

	if (list)
		snprintf(interface, sizeof interface, "%.*s", (int)strcspn(list, ","), list);
	else
		local_address(request->address, address, sizeof address);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);

	int rc = gloo_mesh_new(request->rank, request->size, interface, address, &gloo->mesh, err);

	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (rc && *interface)
		return error_set(
			err, ERR_UNAVAILABLE,
			"GLOO_SOCKET_IFNAME is %s, but this node has no interface of that "
			"name with an address. Choose one with berth run --iface, or unset it",
			list);
	return rc ? error_prefix(err, "gloo found no address to listen at") : 0;
}

/* ---- what the ranks agree on ---- */

/* Return 0, or the error of all ranks alike; *first knows the cause. */
static int check_starts(const struct start *starts, int size, int *first, struct error *err)
{
	for (int rank = 0; rank < size; rank++) {
		const struct start *start = &starts[rank];

		*first = rank;
		if (start->err.code)
			return error_set(err, start->err.code, "%.900s (on %s)", start->err.text,
					 start->host);
	}
	*first = 0;
	for (int rank = 1; rank < size; rank++)
		if (strcmp(starts[rank].build, starts[0].build))
			return error_set(err, ERR_UNAVAILABLE,
					 "rank 0 on %s has gloo build %.12s, but rank %d on %s has "
					 "%.12s: install the same libgloo on all nodes",
					 starts[0].host, starts[0].build, rank, starts[rank].host,
					 starts[rank].build);
	return 0;
}

static int missing_error(const struct gloo *gloo, const struct ranks_list *missing,
			 const char *what, int timeout_ms, struct error *err)
{
	return error_set(err, ERR_NETWORK,
			 "rank%s %s of %d did not %s within %d s. Look for earlier errors in the "
			 "output, or raise --comm-timeout",
			 missing->count > 1 ? "s" : "", missing->text, gloo->comm.size, what,
			 timeout_ms / 1000);
}

/* own: why this rank cannot take part, or zeros. */
static int exchange_starts(struct gloo *gloo, const struct error *own, struct error *err)
{
	int size = gloo->comm.size, first = 0;
	struct start mine = {.err = *own}, *starts = calloc((size_t)size, sizeof *starts);
	struct ranks_list missing = {0};

	gloo->hosts = calloc((size_t)size, sizeof *gloo->hosts);
	if (!starts || !gloo->hosts) {
		free(starts);
		return error_memory(err, "the ranks' hosts");
	}
	if (gethostname(mine.host, sizeof mine.host - 1))
		strcpy(mine.host, "?");
	gloo_mesh_build(mine.build);

	int rc = ranks_exchange(gloo->ranks, KEY_START, &mine, sizeof mine,
				gloo->timeout_ms + (gloo->comm.rank ? LATER_MS : 0), starts,
				&missing, err);

	if (missing.count)
		rc = missing_error(gloo, &missing, "start gloo", gloo->timeout_ms, err);
	else if (!rc)
		rc = check_starts(starts, size, &first, err);
	if (rc && first != gloo->comm.rank)
		rank_group_let_failed_rank_end_first();
	gloo->one_node = true;
	for (int rank = 0; rank < size; rank++) {
		memcpy(gloo->hosts[rank], starts[rank].host, sizeof *gloo->hosts);
		gloo->hosts[rank][sizeof *gloo->hosts - 1] = 0;
		gloo->one_node = gloo->one_node && !strcmp(gloo->hosts[rank], gloo->hosts[0]);
	}
	free(starts);
	return rc;
}

/* ---- connecting ---- */

/* *again: some rank could not connect, which all ranks know now. */
static int connect_once(struct gloo *gloo, int number, bool *again, struct error *err)
{
	size_t size = (size_t)gloo->comm.size;
	int connect_ms = gloo->timeout_ms < CONNECT_MS ? gloo->timeout_ms : CONNECT_MS;
	struct mesh_contact *own = calloc(size, sizeof *own);
	struct mesh_contact *all = calloc(size, size * sizeof *all);
	struct error *results = calloc(size, sizeof *results), why = {0};
	struct ranks_list missing = {0};
	char key[32];
	int rc;

	if (!own || !all || !results) {
		rc = error_memory(err, "the ranks' addresses");
		goto out;
	}
	rc = gloo_mesh_listen(gloo->mesh, connect_ms, own, &why);
	snprintf(key, sizeof key, "berth.gloo.at.%d", number);

	int met = ranks_exchange(gloo->ranks, key, own, size * sizeof *own, gloo->timeout_ms, all,
				 &missing, err);

	if (!rc && !met)
		rc = gloo_mesh_connect(gloo->mesh, connect_ms, all, &why);
	snprintf(key, sizeof key, "berth.gloo.try.%d", number);
	if (!met)
		met = ranks_exchange(gloo->ranks, key, &why, sizeof why, gloo->timeout_ms, results,
				     &missing, err);
	if (met) {
		rc = missing.count ? missing_error(gloo, &missing, "connect with gloo",
						   gloo->timeout_ms, err)
				   : met;
		goto out;
	}
	for (int rank = 0, worst = 0; rank < gloo->comm.size; rank++) {
		/* A wrong word tells more than a connection that fails because of it. */
		if (!results[rank].code || worst == ERR_DATA ||
		    (worst && results[rank].code != ERR_DATA))
			continue;
		*again = true;
		worst = results[rank].code;
		error_set(err, ERR_NETWORK, "rank %d on %s: %.900s", rank, gloo->hosts[rank],
			  results[rank].text);
	}
	rc = *again ? -ERR_NETWORK : 0;
out:
	free(own);
	free(all);
	free(results);
	return rc;
}

static int connect_ranks(struct gloo *gloo, struct error *err)
{
	for (int number = 1;; number++) {
		bool again = false;
		int rc = connect_once(gloo, number, &again, err);

		if (!again)
			return rc;
		if (number == TRIES) {
			if (gloo->comm.rank)
				rank_group_let_failed_rank_end_first();
			return error_prefix(
				err,
				"the ranks could not connect with gloo in %d tries. Test "
				"the network with berth check. The last error",
				TRIES);
		}
		if (!gloo->comm.rank)
			log_user(LOG_WARNING, "connecting with gloo, try %d of %d failed: %s",
				 number, TRIES, err->text);
	}
}

/* gloo writes to connections that the other end may have closed, which raises SIGPIPE. */
static int connect_without_signal(struct gloo *gloo, struct error *err)
{
	sigset_t pipe, before;

	sigemptyset(&pipe);
	sigaddset(&pipe, SIGPIPE);
	pthread_sigmask(SIG_BLOCK, &pipe, &before);

	int rc = connect_ranks(gloo, err);

	while (!sigismember(&before, SIGPIPE) &&
	       sigtimedwait(&pipe, NULL, &(struct timespec){0}) > 0)
		;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return rc;
}

static int start_thread(struct gloo *gloo, struct error *err)
{
	gloo->thread_runs = !thread_start(&gloo->thread, gloo_thread, gloo);
	return gloo->thread_runs ? 0 : error_memory(err, "a thread for gloo");
}

int gloo_open(const struct comm_request *request, struct comm **out, struct error *err)
{
	struct gloo *gloo = calloc(1, sizeof *gloo);
	struct error own = {0};

	if (!gloo)
		return error_memory(err, "the communicator");
	gloo->comm = (struct comm){.ops = &comm_gloo, .rank = request->rank, .size = request->size};
	gloo->ranks = request->ranks;
	gloo->timeout_ms = request->timeout_ms;
	pthread_mutex_init(&gloo->lock, NULL);
	clock_cond_init(&gloo->changed);

	new_mesh(gloo, request, &own);

	int rc = exchange_starts(gloo, &own, err);

	if (!rc)
		rc = connect_without_signal(gloo, err);
	if (!rc)
		rc = start_thread(gloo, err);
	if (rc) {
		gloo->failed = true;
		comm_gloo.close(&gloo->comm);
		return rc;
	}
	*out = &gloo->comm;
	return 0;
}
