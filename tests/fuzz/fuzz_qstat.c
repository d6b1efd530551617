/* SPDX-License-Identifier: BSD-3-Clause */
/* qstat's output, as JSON or plain text: well-formed parts are used, the rest is ignored. */
#include "fuzz.h"

#include "alloc/alloc.h"
#include "alloc/pbs.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *text = fuzz_text(data, size), job[] = "2.pbs-head";
	char first[] = "pbs-n1.bed.test", second[] = "pbs-n2";
	struct alloc_node nodes[] = {{first, 1, -1}, {second, 1, -1}};
	struct alloc alloc = {.source = ALLOC_FROM_PBS,
			      .job_id = job,
			      .node_count = 2,
			      .nodes = nodes,
			      .this_node = -1};
	struct pbs_job_info answer = {0};
	struct error err = {0};

	if (pbs_job_info_read(text, job, &answer, &err)) {
		CHECK(err.code == ERR_DATA && *err.text);
		CHECK(!answer.walltime && !answer.exec_host);
	} else {
		pbs_job_info_apply(&answer, &alloc);
		CHECK(alloc.end_reason && alloc.end_time >= 0);
		CHECK(alloc.restarts >= 0);
		for (int i = 0; i < 2; i++)
			CHECK(nodes[i].gpus >= -1);
	}
	pbs_job_info_free(&answer);
	free(alloc.end_reason);
	free(text);
	return 0;
}
