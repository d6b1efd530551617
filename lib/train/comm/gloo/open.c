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

#define TRIES 5
#define CONNECT_MS 5000

extern const struct comm_ops comm_gloo;

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
static int new_mesh(const struct comm_request *request, struct gloo_mesh **out, struct error *err)
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

	int rc = gloo_mesh_new(request->rank, request->size, interface, address, out, err);

	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (rc && *interface)
		return error_set(
			err, ERR_UNAVAILABLE,
			"GLOO_SOCKET_IFNAME is %s, but this node has no interface of that "
			"name with an address. Choose one with berth run --iface, or unset it",
			list);
	return rc ? error_prefix(err, "gloo found no address to listen at") : 0;
}

int gloo_prepare(const struct comm_request *request, char common[48], struct error *err)
{
	struct gloo_mesh *mesh = NULL;
	int rc = new_mesh(request, &mesh, err);
	char build[48];

	gloo_mesh_free(mesh);
	gloo_mesh_build(build);
	snprintf(common, 48, "gloo build %.12s", build);
	return rc;
}

/* ---- connecting ---- */

static int missing_error(const struct gloo *gloo, const struct ranks_list *missing,
			 const char *what, int timeout_ms, struct error *err)
{
	return error_set(err, ERR_NETWORK,
			 "rank%s %s of %d did not %s within %d s. Look for earlier errors in the "
			 "output, or raise --comm-timeout",
			 missing->count > 1 ? "s" : "", missing->text, gloo->comm.size, what,
			 timeout_ms / 1000);
}

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
		error_set(err, ERR_NETWORK, "rank %d on %s: %.900s", rank,
			  gloo->meeting->hosts[rank], results[rank].text);
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

	if (!gloo)
		return error_memory(err, "the communicator");
	gloo->comm = (struct comm){.ops = &comm_gloo, .rank = request->rank, .size = request->size};
	gloo->ranks = request->ranks;
	gloo->meeting = request->meeting;
	gloo->timeout_ms = request->timeout_ms;
	pthread_mutex_init(&gloo->lock, NULL);
	clock_cond_init(&gloo->changed);

	int rc = new_mesh(request, &gloo->mesh, err);

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
