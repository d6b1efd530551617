/* SPDX-License-Identifier: BSD-3-Clause */
/* Wait for a PMIx operation that calls back, with a deadline, which PMIx itself lacks. */
#ifndef BERTH_PMIX_CLIENT_WAIT_H
#define BERTH_PMIX_CLIENT_WAIT_H

#include <pmix_common.h>

/* Shared by the caller and the callback. The one that finishes last frees it, so that a callback
 * after the deadline still finds it. */
struct client_wait;

struct client_wait *client_wait_new(void); /* NULL if memory is out */
/* Pass one of these to PMIx as the callback: the first as a pmix_op_cbfunc_t, the second as a
 * pmix_value_cbfunc_t for a byte object, which it copies. */
void client_wait_done(pmix_status_t status, void *wait);
void client_wait_done_value(pmix_status_t status, pmix_value_t *value, void *wait);
/* Wait at most timeout_ms for the callback (0: only check). status is what the PMIx call itself
 * returned; PMIx calls back only after PMIX_SUCCESS. Return PMIx's status, or PMIX_ERR_TIMEOUT.
 * wait is no longer the caller's. After a timeout it goes into the list *late if late is not NULL.
 * *value (may be NULL) receives the value of client_wait_done_value, malloced, with a NUL after it;
 * it stays untouched if there is none. */
int client_wait_end(struct client_wait *wait, int status, int timeout_ms, struct client_wait **late,
		    pmix_byte_object_t *value);
/* Free that list, once PMIx is finalized and makes no more callbacks. */
void client_wait_free_late(struct client_wait **late);

#endif
