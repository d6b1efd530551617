/* SPDX-License-Identifier: BSD-3-Clause */
/* Ranks from RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT alone: under torchrun, or
 * set by hand. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/number.h"
#include "rendezvous/ranks.h"
#include "rendezvous/store.h"

#define WORLD_MAX 1048576
/* ranks_put has no time limit of its own, but the first call may have to wait for rank 0. */
#define PUT_TIMEOUT_MS 30000
/* how long rank 0 answers the other ranks after it has left */
#define LINGER_MS 2000

struct client {
	struct ranks_place place;
	struct store_job job;
	int port; /* MASTER_PORT, or its neighbour if torchrun itself listens there */
	struct store_server *server; /* on rank 0, once it was needed */
	struct store_client store;
};

/* Read an optional number. *out stays if name is unset. */
static int read_number(const struct env *env, const char *name, int min, int max, int *out,
		       struct error *err)
{
	const char *text = env_get(env, name);

	return text ? number_int(name, text, min, max, out, err) : 0;
}

static int read_node_rank(const struct env *env, const struct ranks_place *place, int *node_rank,
			  struct error *err)
{
	int node = -1, group = -1;
	int rc = read_number(env, "NODE_RANK", 0, WORLD_MAX, &node, err);

	if (!rc)
		rc = read_number(env, "GROUP_RANK", 0, WORLD_MAX, &group, err);
	if (rc)
		return rc;
	/* torchrun numbers its groups itself, whatever NODE_RANK was at its start. */
	bool torchrun = env_get(env, TORCHRUN_WORKER) != NULL;

	if (node >= 0 && group >= 0 && node != group && !torchrun)
		return error_set(err, ERR_DATA,
				 "NODE_RANK is %d but GROUP_RANK is %d: they must be equal; unset "
				 "the stale one",
				 node, group);
	if (group >= 0)
		*node_rank = group;
	else if (node >= 0)
		*node_rank = node;
	else if (place->local_size)
		/* Right if all nodes have as many ranks as this one. */
		*node_rank = (place->rank - place->local_rank) / place->local_size;
	return 0;
}

static int read_local(const struct env *env, struct ranks_place *place, struct error *err)
{
	int rc = read_number(env, "LOCAL_RANK", 0, WORLD_MAX, &place->local_rank, err);

	if (!rc)
		rc = read_number(env, "LOCAL_WORLD_SIZE", 1, WORLD_MAX, &place->local_size, err);
	if (rc)
		return rc;
	if (!env_get(env, "LOCAL_RANK") && place->size > 1)
		return error_set(err, ERR_DATA,
				 "RANK is %d of WORLD_SIZE %d, but LOCAL_RANK is not set; set it "
				 "to this process's number on its node",
				 place->rank, place->size);
	if (!place->local_size && place->size == 1)
		place->local_size = 1;
	if (place->local_rank > place->rank)
		return error_set(err, ERR_DATA,
				 "LOCAL_RANK is %d but RANK is %d: LOCAL_RANK must not exceed RANK",
				 place->local_rank, place->rank);
	if (place->local_size && place->local_rank >= place->local_size)
		return error_set(err, ERR_DATA,
				 "LOCAL_RANK is %d but LOCAL_WORLD_SIZE is %d: expected a local "
				 "rank from 0 to %d",
				 place->local_rank, place->local_size, place->local_size - 1);
	if (place->local_size > place->size)
		return error_set(err, ERR_DATA,
				 "LOCAL_WORLD_SIZE is %d but WORLD_SIZE is %d: a node cannot have "
				 "more ranks than the job",
				 place->local_size, place->size);
	return 0;
}

int place_from_env(const struct env *env, struct ranks_place *out, struct error *err)
{
	struct ranks_place place = {0};
	bool have_rank = env_get(env, "RANK"), have_size = env_get(env, "WORLD_SIZE");
	int rc = read_number(env, "WORLD_SIZE", 1, WORLD_MAX, &place.size, err);

	if (!rc)
		rc = read_number(env, "RANK", 0, WORLD_MAX, &place.rank, err);
	if (!rc)
		rc = read_number(env, "MASTER_PORT", 1, 65535, &place.port, err);
	if (rc)
		return rc;
	if (have_rank != have_size)
		return error_set(err, ERR_DATA, "%s is set but %s is not: set both or neither",
				 have_rank ? "RANK" : "WORLD_SIZE",
				 have_rank ? "WORLD_SIZE" : "RANK");
	if (place.rank >= place.size)
		return error_set(err, ERR_DATA,
				 "RANK is %d but WORLD_SIZE is %d: expected a rank from 0 to %d",
				 place.rank, place.size, place.size - 1);
	const char *address = env_get(env, "MASTER_ADDR");

	if (address && strlen(address) >= sizeof place.address)
		return error_set(err, ERR_DATA,
				 "MASTER_ADDR has %zu bytes, expected an address or a host name of "
				 "at most %zu",
				 strlen(address), sizeof place.address - 1);
	snprintf(place.address, sizeof place.address, "%s",
		 address	   ? address
		 : place.size == 1 ? "127.0.0.1"
				   : "");
	rc = read_local(env, &place, err);
	if (!rc)
		rc = read_node_rank(env, &place, &place.node_rank, err);
	if (!rc)
		*out = place;
	return rc;
}

static int join(const struct env *env, int timeout_ms, void **state, struct ranks_place *place,
		struct error *err)
{
	struct client *client = calloc(1, sizeof *client);

	if (!client)
		return error_memory(err, "the key-value exchange");
	int rc = place_from_env(env, &client->place, err);

	if (!rc)
		rc = store_job_set_secret(&client->job, env_get(env, "BERTH_STORE_SECRET"), err);
	if (rc) {
		free(client);
		return rc;
	}
	/* Distinguishes this job from another at the same address and port. */
	const char *job = env_get(env, "BERTH_JOB_ID"), *run = env_get(env, "TORCHELASTIC_RUN_ID");
	const char *attempt = env_get(env, "BERTH_ATTEMPT");
	const char *restart = env_get(env, "TORCHELASTIC_RESTART_COUNT");
	const char *store = env_get(env, TORCHRUN_WORKER);

	snprintf(client->job.label, sizeof client->job.label, "%.80s/%.10s.%.10s",
		 job   ? job
		 : run ? run
		       : "",
		 attempt ? attempt : "0", restart ? restart : "0");
	client->port = client->place.port;
	if (store && !strcmp(store, "True") && client->port)
		client->port += client->port < 65535 ? 1 : -1;
	client->store.channel.fd = -1;
	*state = client;
	*place = client->place;
	return 0;
}

/* Take the port only when an exchange is first used: other programs may want MASTER_PORT for
 * themselves. */
static int serve_or_connect(struct client *client, int timeout_ms, struct error *err)
{
	const struct ranks_place *place = &client->place;

	if (client->store.channel.fd >= 0)
		return 0;
	if (!place->address[0] || !place->port)
		return error_set(err, ERR_DATA,
				 "%s is not set, so the %d ranks have no rendezvous address; set "
				 "MASTER_ADDR to rank 0's address and MASTER_PORT to a free port",
				 place->address[0] ? "MASTER_PORT" : "MASTER_ADDR", place->size);
	log_info(LOG_RENDEZVOUS, "rank %d of %d %s %s port %d", place->rank, place->size,
		 place->rank ? "connects to" : "listens on", place->address, client->port);
	if (place->rank)
		return store_connect(place->address, client->port, place->rank, place->size,
				     &client->job, timeout_ms, &client->store, err);
	client->store.rank = 0;
	client->store.size = place->size;
	snprintf(client->store.where, sizeof client->store.where, "%s port %d", place->address,
		 client->port);
	return store_serve(place->address, client->port, place->size, &client->job, &client->server,
			   &client->store.channel.fd, err);
}

static int barrier(void *state, int timeout_ms, struct error *err)
{
	struct client *client = state;
	int rc = serve_or_connect(client, timeout_ms, err);

	return rc ? rc : store_barrier(&client->store, timeout_ms, err);
}

static int put(void *state, const char *key, const void *data, size_t size, struct error *err)
{
	struct client *client = state;
	int rc = serve_or_connect(client, PUT_TIMEOUT_MS, err);

	return rc ? rc : store_put(&client->store, key, data, size, PUT_TIMEOUT_MS, err);
}

static int get(void *state, int rank, const char *key, int timeout_ms, void **data, size_t *size,
	       struct error *err)
{
	struct client *client = state;
	int rc = serve_or_connect(client, timeout_ms, err);

	if (!rc)
		rc = store_get(&client->store, rank == RANKS_ANY ? STORE_ANY : rank, key,
			       timeout_ms, data, size, err);
	if (rc && rank == RANKS_ANY && client->store.channel.fd < 0) {
		if (err)
			err->code = ERR_UNAVAILABLE;
		rc = -ERR_UNAVAILABLE;
	}
	return rc;
}

static void leave(void *state)
{
	struct client *client = state;

	/* The own connection first: store_stop waits until no rank is connected. */
	store_close(&client->store);
	store_stop(client->server, LINGER_MS);
	free(client);
}

const struct ranks_client_ops ranks_client_env = {
	.join = join,
	.barrier = barrier,
	.put = put,
	.get = get,
	.leave = leave,
};
