/* What any program does first, without a device: needs the library and, of itself, libibverbs. */
#include <librpma.h>
#include <stdio.h>

int main(void)
{
	struct rpma_peer_cfg *pcfg;
	unsigned char descriptor = 0;
	if (rpma_peer_cfg_new(&pcfg) || rpma_peer_cfg_set_direct_write_to_pmem(pcfg, true) ||
	    rpma_peer_cfg_get_descriptor(pcfg, &descriptor) || rpma_peer_cfg_delete(&pcfg))
		return 1;
	printf("%u %s, %s\n", descriptor, rpma_err_2str(RPMA_E_AGAIN),
	       ibv_wc_status_str(IBV_WC_SUCCESS));
	return 0;
}
