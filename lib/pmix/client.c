/* SPDX-License-Identifier: BSD-3-Clause */
/* A process's place from PMIx: under berth's own server, mpirun, prterun, or srun --mpi=pmix. */
#include <pmix.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/number.h"
#include "hostlist/idset.h"
#include "pmix/client_wait.h"
#include "rendezvous/ranks.h"

#define OWN_KEY_BYTES (RANKS_KEY_MAX + 32)
/* What each rank publishes before it enters barrier number N: the value N, under the key N %
 * BARRIER_KEYS. The keys are read only if a barrier fails, to name the missing ranks. There are
 * several keys because PMIx's client caches all it ever saw of a rank. A cached value of an older
 * barrier then does no harm. */
#define BARRIER_KEYS 16
#define MISSING_MS 500

struct client {
	pmix_proc_t self;
	int size;
	uint64_t barriers;
	/* Requests that PMIx has not answered in time. It still may, until PMIx_Finalize. */
	struct client_wait *late_waits;
};

/* ---- join ---- */

/* PMIx_Init waits for its server without limit; a thread of its own gives it a deadline. */
struct init {
	pmix_proc_t self;
	struct client_wait *wait;
};

static void *init_thread(void *context)
{
	struct init *init = context;
	struct client_wait *wait = init->wait;

	client_wait_done(PMIx_Init(&init->self, NULL, 0), wait);
	return NULL;
}

static int init(int timeout_ms, pmix_proc_t *self, struct error *err)
{
	struct init *init = calloc(1, sizeof *init);
	pthread_t thread;

	if (!init || !(init->wait = client_wait_new())) {
		free(init);
		return error_memory(err, "PMIx");
	}
	if (thread_start(&thread, init_thread, init)) {
		client_wait_end(init->wait, PMIX_ERROR, 0, NULL, NULL);
		free(init);
		return error_memory(err, "a thread for PMIx_Init");
	}
	int status = client_wait_end(init->wait, PMIX_SUCCESS, timeout_ms, NULL, NULL);

	if (status == PMIX_ERR_TIMEOUT) {
		pthread_detach(thread);
		return error_set(err, ERR_NETWORK,
				 "no answer from this node's PMIx server within %d ms; check that "
				 "the agent, mpirun or srun that started this process still runs",
				 timeout_ms);
	}
	pthread_join(thread, NULL);
	*self = init->self;
	free(init);
	if (status != PMIX_SUCCESS)
		return error_set(err, ERR_UNAVAILABLE, "PMIx_Init failed: %s",
				 PMIx_Error_string(status));
	return 0;
}

/* Get a number of the job (rank wildcard) or of this process from PMIx's local data, without
 * traffic. */
static int get_number(const struct client *client, pmix_rank_t rank, const char *key, int *out)
{
	pmix_proc_t proc = client->self;
	pmix_info_t optional;
	pmix_value_t *value = NULL;
	bool yes = true;

	proc.rank = rank;
	PMIX_INFO_LOAD(&optional, PMIX_OPTIONAL, &yes, PMIX_BOOL);
	pmix_status_t status = PMIx_Get(&proc, key, &optional, 1, &value);

	if (status == PMIX_SUCCESS && value) {
		PMIX_VALUE_GET_NUMBER(status, value, *out, int);
	}
	if (value)
		PMIX_VALUE_RELEASE(value);
	return status == PMIX_SUCCESS ? 0 : -1;
}

static int read_place(const struct client *client, const struct env *env, struct ranks_place *place,
		      struct error *err)
{
	struct ranks_place found = {.rank = (int)client->self.rank, .size = client->size};

	if (get_number(client, client->self.rank, PMIX_LOCAL_RANK, &found.local_rank) ||
	    get_number(client, PMIX_RANK_WILDCARD, PMIX_LOCAL_SIZE, &found.local_size))
		return error_set(err, ERR_DATA,
				 "PMIx reports neither the local rank nor the number of local "
				 "ranks for rank %d in namespace %s",
				 found.rank, client->self.nspace);
	const char *node = env_get(env, "NODE_RANK"), *address = env_get(env, "MASTER_ADDR");
	const char *port = env_get(env, "MASTER_PORT");

	if (get_number(client, client->self.rank, PMIX_NODEID, &found.node_rank) && node &&
	    number_int("NODE_RANK", node, 0, client->size - 1, &found.node_rank, err))
		return -ERR_DATA;
	if (address && strlen(address) >= sizeof found.address)
		return error_set(err, ERR_DATA,
				 "MASTER_ADDR has %zu bytes, expected a numeric address or a host "
				 "name of at most %zu",
				 strlen(address), sizeof found.address - 1);
	snprintf(found.address, sizeof found.address, "%s",
		 address	   ? address
		 : found.size == 1 ? "127.0.0.1"
				   : "");
	if (port && number_int("MASTER_PORT", port, 1, 65535, &found.port, err))
		return -ERR_DATA;
	*place = found;
	return 0;
}

static int join(const struct env *env, int timeout_ms, void **state, struct ranks_place *place,
		struct error *err)
{
	struct client *client = calloc(1, sizeof *client);

	if (!client)
		return error_memory(err, "PMIx");
	int rc = init(timeout_ms, &client->self, err);

	if (rc) {
		free(client);
		return rc;
	}
	if (get_number(client, PMIX_RANK_WILDCARD, PMIX_JOB_SIZE, &client->size))
		rc = error_set(err, ERR_DATA,
			       "PMIx does not report the number of ranks in namespace %s",
			       client->self.nspace);
	else
		rc = read_place(client, env, place, err);
	if (rc) {
		PMIx_Finalize(NULL, 0);
		free(client);
		return rc;
	}
	*state = client;
	return 0;
}

/* ---- key and value ---- */

static int publish(const char *key, const void *data, size_t size)
{
	pmix_value_t value = {.type = PMIX_BYTE_OBJECT};

	value.data.bo.bytes = (char *)(uintptr_t)data; /* PMIx_Put copies */
	value.data.bo.size = size;
	pmix_status_t status = PMIx_Put(PMIX_GLOBAL, key, &value);

	return status == PMIX_SUCCESS ? PMIx_Commit() : status;
}

static void own_key(char full[OWN_KEY_BYTES], const char *key)
{
	snprintf(full, OWN_KEY_BYTES, "berth.user.%s", key);
}

static int put(void *state, const char *key, const void *data, size_t size, struct error *err)
{
	char full[OWN_KEY_BYTES];

	own_key(full, key);
	int status = publish(full, size ? data : "", size);

	return status == PMIX_SUCCESS
		       ? 0
		       : error_set(err, ERR_NETWORK, "cannot put '%s' through PMIx: %s", key,
				   PMIx_Error_string(status));
}

/* One try. Return PMIx's status; after PMIX_SUCCESS the caller frees value->bytes. */
static int fetch_once(struct client *client, int rank, const char *key, int timeout_ms,
		      pmix_byte_object_t *value)
{
	struct client_wait *wait = client_wait_new();
	pmix_proc_t proc = client->self;

	if (!wait)
		return PMIX_ERR_NOMEM;
	proc.rank = (pmix_rank_t)rank;
	value->bytes = NULL;
	int status = PMIx_Get_nb(&proc, key, NULL, 0, client_wait_done_value, wait);

	status = client_wait_end(wait, status, timeout_ms, &client->late_waits, value);
	return status == PMIX_SUCCESS && !value->bytes ? PMIX_ERR_NOT_FOUND : status;
}

static int get(void *state, int rank, const char *key, int timeout_ms, void **data, size_t *size,
	       struct error *err)
{
	struct client *client = state;
	int64_t until = clock_now_ms() + timeout_ms;
	int pause_ms = 2, status;
	char full[OWN_KEY_BYTES];
	pmix_byte_object_t value;

	if (rank == RANKS_ANY)
		return error_set(err, ERR_UNAVAILABLE,
				 "cannot get '%s' from any rank: PMIx needs a rank number", key);
	own_key(full, key);
	/* PMIx answers "not found" if rank has published something else: ask again. */
	for (;;) {
		int64_t left = until - clock_now_ms();

		status = left > 0 ? fetch_once(client, rank, full, (int)left, &value)
				  : PMIX_ERR_TIMEOUT;
		if (status != PMIX_ERR_NOT_FOUND || until - clock_now_ms() <= pause_ms)
			break;
		nanosleep(&(struct timespec){.tv_nsec = pause_ms * 1000000L}, NULL);
		pause_ms = pause_ms < 64 ? pause_ms * 2 : pause_ms;
	}
	if (status == PMIX_SUCCESS) {
		*data = value.bytes;
		*size = value.size;
		return 0;
	}
	if (status == PMIX_ERR_TIMEOUT || status == PMIX_ERR_NOT_FOUND)
		return error_set(err, ERR_NETWORK, "rank %d has not put '%s' within %d ms", rank,
				 key, timeout_ms);
	return error_set(err, ERR_NETWORK, "cannot get '%s' from rank %d through PMIx: %s", key,
			 rank, PMIx_Error_string(status));
}

/* ---- barrier ---- */

static void barrier_key(const struct client *client, char *key, size_t size)
{
	snprintf(key, size, "berth.barrier.%d", (int)(client->barriers % BARRIER_KEYS));
}

/* The ranks that are known not to have entered our barrier, as the text of a set; malloced or
 * NULL. */
static char *missing(struct client *client)
{
	struct idset *set = idset_new();
	int64_t until = clock_now_ms() + MISSING_MS;
	char key[64];

	barrier_key(client, key, sizeof key);
	for (int rank = 0; set && rank < client->size; rank++) {
		pmix_byte_object_t value;
		int64_t left = until - clock_now_ms();

		if (rank == (int)client->self.rank)
			continue;
		/* Give each request a chance, but limit the total time. */
		if (left < 5)
			left = 5;
		if (left > MISSING_MS / 4)
			left = MISSING_MS / 4;
		if (fetch_once(client, rank, key, (int)left, &value) == PMIX_SUCCESS)
			free(value.bytes);
		else
			idset_add(set, rank);
	}
	char *text = set ? idset_format(set) : NULL;

	idset_free(set);
	return text;
}

static int barrier(void *state, int timeout_ms, struct error *err)
{
	struct client *client = state;
	struct client_wait *wait = client_wait_new();

	if (!wait)
		return error_memory(err, "a barrier");
	char key[64];

	client->barriers++;
	barrier_key(client, key, sizeof key);
	int status = publish(key, &client->barriers, sizeof client->barriers);

	if (status == PMIX_SUCCESS)
		status = PMIx_Fence_nb(NULL, 0, NULL, 0, client_wait_done, wait);
	status = client_wait_end(wait, status, timeout_ms, &client->late_waits, NULL);
	if (status == PMIX_SUCCESS)
		return 0;
	if (status != PMIX_ERR_TIMEOUT)
		return error_set(err, ERR_NETWORK, "barrier of %d ranks through PMIx failed: %s",
				 client->size, PMIx_Error_string(status));
	char *who = missing(client);

	if (who && *who)
		error_set(err, ERR_NETWORK,
			  "barrier of %d ranks: after %d ms still waiting for rank%s %s",
			  client->size, timeout_ms, strpbrk(who, ",-") ? "s" : "", who);
	else
		error_set(
			err, ERR_NETWORK,
			"barrier of %d ranks timed out after %d ms; the missing ranks are unknown",
			client->size, timeout_ms);
	free(who);
	return -ERR_NETWORK;
}

/* PMIx 5.0.0 to 5.0.3 (Ubuntu 24.04 has 5.0.1) read freed memory in PMIx_Finalize after a get that
 * was not answered. Its caller is about to end with an error, and PMIx's server notices that, too.
 */
#define CRASHES (PMIX_NUMERIC_VERSION >= 0x00050000 && PMIX_NUMERIC_VERSION < 0x00050004)

static void leave(void *state)
{
	struct client *client = state;

	if (!CRASHES || !client->late_waits)
		PMIx_Finalize(NULL, 0);
	/* Another user in this process (MPI) still needs PMIx: its thread is alive. */
	if (!PMIx_Initialized())
		client_wait_free_late(&client->late_waits);
	free(client);
}

__attribute__((visibility("default"))) const struct ranks_client_ops ranks_client_pmix = {
	.join = join,
	.barrier = barrier,
	.put = put,
	.get = get,
	.leave = leave,
};
