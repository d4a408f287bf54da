//! Special registers that keep their value while a thread runs.

/// A special register. Axes are 0 to 2 for x to z.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // The PTX names.
pub enum Special {
    Tid(u8),
    Ntid(u8),
    Ctaid(u8),
    Nctaid(u8),
    LaneId,
    WarpId,
    NWarpId,
    SmId,
    NSmId,
    GridId,
    LanemaskEq,
    LanemaskLe,
    LanemaskLt,
    LanemaskGe,
    LanemaskGt,
    ClusterId(u8),
    NClusterId(u8),
    ClusterCtaId(u8),
    ClusterNCtaId(u8),
    ClusterCtaRank,
    ClusterNCtaRank,
    DynamicSharedSize,
    TotalSharedSize,
}

impl Special {
    /// The register of this name (`%tid`) and component (`x`).
    pub fn parse(name: &str, component: Option<&str>) -> Option<Special> {
        if let Some(component) = component {
            let axis = match component {
                "x" => 0,
                "y" => 1,
                "z" => 2,
                _ => return None,
            };
            return Some(match name {
                "%tid" => Special::Tid(axis),
                "%ntid" => Special::Ntid(axis),
                "%ctaid" => Special::Ctaid(axis),
                "%nctaid" => Special::Nctaid(axis),
                "%clusterid" => Special::ClusterId(axis),
                "%nclusterid" => Special::NClusterId(axis),
                "%cluster_ctaid" => Special::ClusterCtaId(axis),
                "%cluster_nctaid" => Special::ClusterNCtaId(axis),
                _ => return None,
            });
        }
        Some(match name {
            "%laneid" => Special::LaneId,
            "%warpid" => Special::WarpId,
            "%nwarpid" => Special::NWarpId,
            "%smid" => Special::SmId,
            "%nsmid" => Special::NSmId,
            "%gridid" => Special::GridId,
            "%lanemask_eq" => Special::LanemaskEq,
            "%lanemask_le" => Special::LanemaskLe,
            "%lanemask_lt" => Special::LanemaskLt,
            "%lanemask_ge" => Special::LanemaskGe,
            "%lanemask_gt" => Special::LanemaskGt,
            "%cluster_ctarank" => Special::ClusterCtaRank,
            "%cluster_nctarank" => Special::ClusterNCtaRank,
            "%dynamic_smem_size" => Special::DynamicSharedSize,
            "%total_smem_size" => Special::TotalSharedSize,
            _ => return None,
        })
    }

    /// The register's width.
    pub fn bits(self) -> u32 {
        if self == Special::GridId { 64 } else { 32 }
    }
}
