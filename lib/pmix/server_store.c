/* SPDX-License-Identifier: BSD-3-Clause */
/* publish, lookup and unpublish: a list in the agent's thread. Jobs publish only a few names
 * (MPI_Publish_name, MPI_Comm_connect), so a list is enough. */
#include <stdlib.h>
#include <string.h>

#include "pmix/server.h"

static struct published **store_find(struct ranks_server *server, const char *key)
{
	for (struct published **p = &server->published; *p; p = &(*p)->next)
		if (!strcmp((*p)->key, key))
			return p;
	return NULL;
}

static void store_drop(struct published **place)
{
	struct published *gone = *place;

	*place = gone->next;
	PMIX_VALUE_DESTRUCT(&gone->value);
	free(gone->key);
	free(gone);
}

static bool is_directive(const pmix_info_t *info)
{
	/* Names reserved for PMIx; users' keys must not begin like that. */
	return !strncmp(info->key, "pmix.", 5);
}

static pmix_status_t store_add(struct ranks_server *server, const struct call *call,
			       const pmix_info_t *info, bool once)
{
	struct published *entry = calloc(1, sizeof *entry);

	if (!entry || !(entry->key = strdup(info->key))) {
		free(entry);
		return PMIX_ERR_NOMEM;
	}
	pmix_status_t status = PMIx_Value_xfer(&entry->value, (pmix_value_t *)&info->value);

	if (status != PMIX_SUCCESS) {
		free(entry->key);
		free(entry);
		return status;
	}
	entry->publisher = call->proc;
	entry->once = once;
	entry->next = server->published;
	server->published = entry;
	return PMIX_SUCCESS;
}

static bool lookup_answer(struct ranks_server *server, struct call *call);

void server_store_publish(struct ranks_server *server, struct call *call)
{
	pmix_status_t status = PMIX_SUCCESS;
	bool once = false;

	for (size_t i = 0; i < call->info_count; i++) {
		if (PMIX_CHECK_KEY(&call->info[i], PMIX_PERSISTENCE))
			once = call->info[i].value.data.persist == PMIX_PERSIST_FIRST_READ;
		else if (!is_directive(&call->info[i]) && store_find(server, call->info[i].key))
			status = PMIX_ERR_DUPLICATE_KEY;
	}
	/* Only now: a call with a duplicate must not publish half of its keys. */
	for (size_t i = 0; i < call->info_count && status == PMIX_SUCCESS; i++)
		if (!is_directive(&call->info[i]))
			status = store_add(server, call, &call->info[i], once);
	call->done.op(status, call->context);
	call_free(call);

	for (struct call **place = &server->waiting; *place;) {
		struct call *waiting = *place;

		if (waiting->kind == CALL_LOOKUP && lookup_answer(server, waiting)) {
			*place = waiting->next;
			call_free(waiting);
		} else {
			place = &waiting->next;
		}
	}
}

/* Answer with what is there; false if the call must wait for the rest. */
static bool lookup_answer(struct ranks_server *server, struct call *call)
{
	size_t wanted = 0, found = 0;

	for (; call->keys[wanted]; wanted++)
		found += store_find(server, call->keys[wanted]) != NULL;
	if (call->wait && found < wanted)
		return false;
	pmix_pdata_t *data = NULL;

	if (found)
		PMIX_PDATA_CREATE(data, found);
	if (!found || !data) {
		call->done.lookup(found ? PMIX_ERR_NOMEM : PMIX_ERR_NOT_FOUND, NULL, 0,
				  call->context);
		return true;
	}
	size_t filled = 0;

	for (size_t i = 0; i < wanted; i++) {
		struct published **place = store_find(server, call->keys[i]);

		/* A key that is listed twice may be gone, if only its first reader gets it. */
		if (!place || filled == found)
			continue;
		PMIX_LOAD_KEY(data[filled].key, call->keys[i]);
		data[filled].proc = (*place)->publisher;
		PMIx_Value_xfer(&data[filled].value, &(*place)->value);
		filled++;
		if ((*place)->once)
			store_drop(place);
	}
	call->done.lookup(filled < wanted ? PMIX_ERR_PARTIAL_SUCCESS : PMIX_SUCCESS, data, filled,
			  call->context);
	PMIX_PDATA_FREE(data, found);
	return true;
}

void server_store_lookup(struct ranks_server *server, struct call *call)
{
	if (lookup_answer(server, call)) {
		call_free(call);
		return;
	}
	call->next = server->waiting;
	server->waiting = call;
}

static bool key_listed(char **keys, const char *key)
{
	for (; *keys; keys++)
		if (!strcmp(*keys, key))
			return true;
	return false;
}

void server_store_unpublish(struct ranks_server *server, struct call *call)
{
	for (struct published **place = &server->published; *place;) {
		const struct published *entry = *place;
		bool own = PMIX_CHECK_PROCID(&entry->publisher, &call->proc);
		bool listed = !call->keys || key_listed(call->keys, entry->key);

		if (own && listed)
			store_drop(place);
		else
			place = &(*place)->next;
	}
	call->done.op(PMIX_SUCCESS, call->context);
	call_free(call);
}

void server_store_free(struct ranks_server *server)
{
	while (server->published)
		store_drop(&server->published);
}
