/* SPDX-License-Identifier: BSD-3-Clause */
/* Waiting for a PMIx operation that calls back, with a deadline that PMIx itself does not have. */
#ifndef BERTH_PMIX_CLIENT_WAIT_H
#define BERTH_PMIX_CLIENT_WAIT_H

#include <pmix_common.h>

/* Shared by the caller and the callback; freed by whichever of the two is done last, so that a
 * callback after the deadline finds it still there. */
struct client_wait;

struct client_wait *client_wait_new(void); /* NULL when memory is out */
/* The callback (a pmix_op_cbfunc_t). */
void client_wait_done(pmix_status_t status, void *wait);
/* status: what the call itself returned; only after PMIX_SUCCESS will it call back. Waits for
 * that at most timeout_ms (0: look only). PMIx's status, or PMIX_ERR_TIMEOUT.
 * wait is given up; after a time-out with late it is kept in that list instead. */
int client_wait_end(struct client_wait *wait, int status, int timeout_ms,
		    struct client_wait **late);
/* Free a list of such, once PMIx is finalized and calls nobody back any more. */
void client_wait_free_late(struct client_wait **late);

#endif
