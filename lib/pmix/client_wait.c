/* SPDX-License-Identifier: BSD-3-Clause */
/* Wait for PMIx with a deadline. */
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <time.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "pmix/client_wait.h"

/* Lives until both the waiter and the callback are done. */
struct client_wait {
	struct client_wait *next;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	int holders;
	bool done;
	int status;
	pmix_byte_object_t value;
};

struct client_wait *client_wait_new(void)
{
	struct client_wait *wait = calloc(1, sizeof *wait);

	if (!wait)
		return NULL;
	pthread_mutex_init(&wait->lock, NULL);
	clock_cond_init(&wait->changed);
	wait->holders = 2;
	return wait;
}

static void wait_drop(struct client_wait *wait, int holders)
{
	wait->holders -= holders;
	bool last = wait->holders == 0;

	pthread_mutex_unlock(&wait->lock);
	if (!last)
		return;
	pthread_cond_destroy(&wait->changed);
	pthread_mutex_destroy(&wait->lock);
	free(wait->value.bytes);
	free(wait);
}

void client_wait_done(pmix_status_t status, void *context)
{
	struct client_wait *wait = context;

	pthread_mutex_lock(&wait->lock);
	wait->done = true;
	wait->status = status;
	pthread_cond_signal(&wait->changed);
	wait_drop(wait, 1);
}

void client_wait_done_value(pmix_status_t status, pmix_value_t *value, void *context)
{
	struct client_wait *wait = context;

	if (status == PMIX_SUCCESS && (!value || value->type != PMIX_BYTE_OBJECT))
		status = PMIX_ERR_TYPE_MISMATCH;
	if (status == PMIX_SUCCESS) {
		wait->value.size = value->data.bo.size;
		wait->value.bytes = bytes_copy(value->data.bo.bytes, wait->value.size);
		if (!wait->value.bytes)
			status = PMIX_ERR_NOMEM;
	}
	client_wait_done(status, wait);
}

int client_wait_end(struct client_wait *wait, int status, int timeout_ms, struct client_wait **late,
		    pmix_byte_object_t *value)
{
	struct timespec until = clock_after_ms(timeout_ms);

	pthread_mutex_lock(&wait->lock);
	if (status != PMIX_SUCCESS) {
		wait_drop(wait, 2);
		return status == PMIX_OPERATION_SUCCEEDED ? PMIX_SUCCESS : status;
	}
	while (!wait->done)
		if (pthread_cond_timedwait(&wait->changed, &wait->lock, &until) == ETIMEDOUT)
			break;
	bool keep = !wait->done && late;

	status = wait->done ? wait->status : PMIX_ERR_TIMEOUT;
	if (keep) {
		wait->next = *late;
		*late = wait;
	}
	if (status == PMIX_SUCCESS && value) {
		*value = wait->value;
		wait->value.bytes = NULL;
	}
	wait_drop(wait, keep ? 0 : 1);
	return status;
}

void client_wait_free_late(struct client_wait **late)
{
	while (*late) {
		struct client_wait *wait = *late;

		*late = wait->next;
		pthread_mutex_lock(&wait->lock);
		wait_drop(wait, wait->holders);
	}
}
